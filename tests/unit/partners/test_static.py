import numpy as np
import pytest
from gymnasium import spaces

from cadenza.partners import ExploratoryStaticPartnerOverride, PartnerSpec, load_partner
from cadenza.partners.registry import list_registered


def test_ablated_partner_acts_with_zeros_of_its_length():
    spec = PartnerSpec("partner_ablated_zero", 0, extra={"uid": "arm", "action_dim": "7"})
    partner = load_partner(spec)
    assert partner.act({}).tolist() == [0.0] * 7
    batch = {"agent": {"arm": {"state": np.ones((3, 4))}}}
    assert partner.act(batch).shape == (3, 7)


@pytest.mark.parametrize("text", ["", "0", "-1", "two", "1.0"])
def test_ablated_partner_without_a_length_is_refused(text):
    with pytest.raises(ValueError, match="action_dim"):
        load_partner(PartnerSpec("partner_ablated_zero", 0, extra={"action_dim": text}))


def test_override_keeps_the_identity_and_shape_of_the_partner_and_does_nothing():
    spec = PartnerSpec("scripted_heuristic", 0, extra={"uid": "arm", "action_dim": "3"})
    inner = load_partner(spec)
    override = ExploratoryStaticPartnerOverride(inner)
    obs = {"agent": {"arm": {"state": np.ones((2, 4))}}}
    assert override.spec is spec
    override.reset(seed=1)
    assert np.abs(inner.act(obs)).max() == 1.0
    assert override.act(obs).tobytes() == np.zeros((2, 3), np.float32).tobytes()
    assert not any("override" in name for name in list_registered())


def test_random_partner_draws_evenly_from_choices_and_numbers():
    partner = load_partner(PartnerSpec("random_actions", 0, extra={"uid": "arm"}))
    obs = {"agent": {"arm": {"state": np.ones((900, 1))}}}
    partner.bind(spaces.Discrete(3, start=5))
    choices, counts = np.unique(partner.act(obs), return_counts=True)
    assert (choices.tolist(), counts.tolist()) == ([5, 6, 7], pytest.approx([300] * 3, abs=60))
    partner.bind(spaces.Box(np.float32([-1, 0]), np.float32([3, 0.5])))
    quarters = np.quantile(partner.act(obs), [0.0, 0.25, 0.75, 1.0], axis=0).T
    assert quarters[0] == pytest.approx([-1, 0, 2, 3], abs=0.2)
    assert 8 * quarters[1] == pytest.approx([0, 1, 3, 4], abs=0.2)
