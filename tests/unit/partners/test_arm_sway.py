"""The swaying arm: how far, how fast, and whose phases."""

import numpy as np
import pytest

from cadenza.core.errors import ConfigurationError
from cadenza.core.seeding import derive_substream
from cadenza.partners import PartnerSpec, load_partner

EMPTY = {"agent": {}}


def sway(seed=0, **extra):
    return load_partner(PartnerSpec("arm_sway", seed, extra=extra))


def played(partner, steps):
    partner.reset(seed=0)
    return np.array([partner.act(EMPTY) for _ in range(steps)])


def test_swing_starts_at_rest_and_keeps_to_amplitude_and_period():
    actions = played(sway(amplitude="0.2", period="40"), 140)
    assert actions.shape == (140, 8)
    assert not actions[0].any()
    assert not actions[:, 7].any()  # the gripper
    np.testing.assert_allclose(actions[60:100], actions[100:140], atol=1e-6)
    np.testing.assert_allclose(np.abs(actions[60:100, :7]).max(axis=0), 0.2, rtol=0.02)
    # Between steps an action changes by at most amplitude (1 / 20 + 2 pi / period).
    assert np.abs(np.diff(actions, axis=0)).max() <= 0.2 * (1 / 20 + 2 * np.pi / 40)
    rng = derive_substream("partner.arm_sway.phases", root_seed=0).default_rng()
    n, phases = np.arange(140.0)[:, None], rng.uniform(0.0, 2.0 * np.pi, 7)
    swing = 0.2 * np.minimum(1.0, n / 20) * np.sin(2 * np.pi * n / 40 + phases)
    np.testing.assert_allclose(actions[:, :7], swing, atol=1e-6)


def test_seed_of_the_partner_gives_the_phases_and_amplitude_zero_none():
    assert played(sway(1), 30).tobytes() == played(sway(1), 30).tobytes()
    assert np.abs(played(sway(1), 30) - played(sway(2), 30)).max() > 0.02
    assert not played(sway(amplitude="0"), 30).any()


def test_bound_partner_takes_the_length_of_the_action_space():
    import gymnasium as gym

    partner = sway()
    partner.bind(gym.spaces.Box(-0.05, 0.05, (13,)))
    actions = played(partner, 60)
    assert actions.shape == (60, 13)
    assert np.abs(actions).max() == pytest.approx(0.05)
    assert not actions[:, 7:].any()


def test_unknown_option_is_named():
    with pytest.raises(ConfigurationError, match="unknown option 'speed'"):
        sway(speed="1")
