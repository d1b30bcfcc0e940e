"""The scripted heuristic: law, position chain, batches, options."""

import numpy as np
import pytest
import torch

from cadenza.core.errors import ConfigurationError
from cadenza.partners.registry import load_partner
from cadenza.partners.spec import PartnerSpec


def partner(**extra):
    return load_partner(PartnerSpec("scripted_heuristic", 0, extra={"uid": "r", **extra}))


def obs_with(state=None, xyz=None):
    obs = {"agent": {} if state is None else {"r": {"state": state}}}
    if xyz is not None:
        obs["comm"] = {"pose": {"r": {"xyz": xyz}}}
    return obs


def state(*values):
    return np.array(values, dtype=np.float32)


def test_action_points_to_the_target_and_is_clipped_to_one():
    # target (0.5, -3): 0.5 - 0.25 = 0.25; -3 - 1 = -4 -> -1
    action = partner(target_xy="0.5,-3").act(obs_with(state(0.25, 1.0, 9.0)))
    assert action.dtype == np.float32
    assert action.tolist() == [0.25, -1.0]


def test_further_action_components_are_zero():
    assert partner(action_dim="5").act(obs_with(state(0.25, -0.5))).tolist() == [
        -0.25,
        0.5,
        0,
        0,
        0,
    ]


def test_gain_scales_the_distance_before_the_clip():
    # 0.5 * 0.5 = 0.25 and 0.5 * 4 = 2 -> 1
    assert partner(gain="0.5").act(obs_with(state(-0.5, -4.0))).tolist() == [0.25, 1.0]


@pytest.mark.parametrize("xyz", [(1.0, 2.0), [1, 2, 3], np.array([1.0, 2.0, 0.0]), torch.ones(2)])
def test_pose_of_the_comm_packet_comes_before_the_state(xyz):
    action = partner(max_speed="9").act(obs_with(state(5.0, 5.0), xyz))
    assert action.tolist() == [-1.0, -float(xyz[1])]


@pytest.mark.parametrize("xyz", [(1.0,), "ab", (np.nan, 1.0), ("x", "y"), 3])
def test_malformed_pose_falls_through_to_the_state(xyz):
    heuristic = partner()
    assert heuristic.act(obs_with(state(0.25, 0.5), xyz)).tolist() == [-0.25, -0.5]
    assert heuristic.fallback_count == 0


@pytest.mark.parametrize(
    "bad", [None, state(1.0), state(np.nan, 0.5), np.float32(3.0), "text", np.zeros((2, 2, 2))]
)
def test_without_any_position_the_origin_is_used_and_counted(bad):
    heuristic = partner(target_xy="0.5,0.25")
    assert heuristic.act(obs_with(bad)).tolist() == [0.5, 0.25]
    assert heuristic.act(obs_with(bad)).tolist() == [0.5, 0.25]
    assert heuristic.fallback_count == 2


def test_batch_of_states_gives_one_action_per_row():
    batch = np.array([[0.25, -0.5, 7.0], [3.0, -3.0, 7.0]], dtype=np.float32)
    action = partner(action_dim="3").act(obs_with(batch))
    assert action.tolist() == [[-0.25, 0.5, 0.0], [-1.0, 1.0, 0.0]]


def test_single_pose_does_not_serve_a_batch_of_states():
    batch = np.array([[0.25, 0.0], [0.5, 0.0], [0.75, 0.0]], dtype=np.float32)
    action = partner().act(obs_with(batch, xyz=(9.0, 9.0, 9.0)))
    assert action[:, 0].tolist() == [-0.25, -0.5, -0.75]


def test_row_without_finite_position_uses_the_origin_alone():
    heuristic = partner(target_xy="0.5,0.5")
    batch = np.array([[0.25, 0.25], [np.nan, 0.25]], dtype=np.float32)
    assert heuristic.act(obs_with(batch)).tolist() == [[0.25, 0.25], [0.5, 0.5]]
    assert heuristic.fallback_count == 1


@pytest.mark.parametrize("make", [np.array, torch.tensor])
def test_batch_of_one_is_answered_by_a_batch_of_one(make):
    assert partner().act(obs_with(make([[0.25, -0.5, 3.0]]))).tolist() == [[-0.25, 0.5]]
    with_pose = obs_with(make([[0.25, -0.5, 3.0]]), xyz=(0.5, 0.5, 0.0))
    assert partner().act(with_pose).tolist() == [[-0.5, -0.5]]


@pytest.mark.parametrize(
    ("key", "texts", "message"),
    [
        ("target_xy", ["", "1,2,3", "nan,0"], "'target_xy': expected two finite numbers"),
        ("action_dim", ["1", "2.0"], "'action_dim': expected an integer >= 2, got"),
    ],
)
def test_malformed_option_is_refused(key, texts, message):
    for text in texts:
        with pytest.raises(ConfigurationError, match=message):
            partner(**{key: text})
