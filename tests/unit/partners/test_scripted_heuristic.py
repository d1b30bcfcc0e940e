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


HERE, FAR = (0.25, 0.5), (5.0, 5.0)
THREE = [[0.25, 0.0], [0.5, 0.0], [0.75, 0.0]]
WIDE = [(*HERE, 7.0), (3.0, -3.0, 7.0)]


@pytest.mark.parametrize(
    ("options", "at", "xyz", "action", "fallbacks"),
    [
        # target (0.5, -3): 0.5 - 0.25 = 0.25; -3 - 1 = -4 -> -1
        ({"target_xy": "0.5,-3"}, (0.25, 1.0, 9.0), None, [0.25, -1.0], 0),
        ({"action_dim": "5"}, (0.25, -0.5), None, [-0.25, 0.5, 0, 0, 0], 0),
        # 0.5 * 0.5 = 0.25 and 0.5 * 4 = 2 -> 1
        ({"gain": "0.5"}, (-0.5, -4.0), None, [0.25, 1.0], 0),
        # The pose of the comm packet comes before the state, if it is one.
        ({"max_speed": "9"}, FAR, (1.0, 2.0), [-1.0, -2.0], 0),
        ({"max_speed": "9"}, FAR, [1, 2, 3], [-1.0, -2.0], 0),
        ({"max_speed": "9"}, FAR, np.array([1.0, 2.0, 0.0]), [-1.0, -2.0], 0),
        ({"max_speed": "9"}, FAR, torch.ones(2), [-1.0, -1.0], 0),
        *(
            ({}, HERE, xyz, [-0.25, -0.5], 0)
            for xyz in [(1.0,), "ab", (np.nan, 1.0), ("x", "y"), 3]
        ),
        # One action per row; one pose does not serve several.
        ({"action_dim": "3"}, WIDE, None, [[-0.25, -0.5, 0], [-1.0, 1.0, 0]], 0),
        ({}, THREE, (9.0, 9.0, 9.0), [[-0.25, 0], [-0.5, 0], [-0.75, 0]], 0),
        ({}, [(*HERE, 3.0)], None, [[-0.25, -0.5]], 0),
        ({}, torch.tensor([HERE]), None, [[-0.25, -0.5]], 0),
        ({}, [HERE], (0.5, 0.0, 0.0), [[-0.5, 0.0]], 0),
        ({}, torch.tensor([HERE]), (0.5, 0.0, 0.0), [[-0.5, 0.0]], 0),
        # The origin serves rows without a finite position.
        ({"target_xy": "0.5,0.5"}, [HERE, (np.nan, 0.25)], None, [[0.25, 0.0], [0.5, 0.5]], 1),
        *(
            ({"target_xy": "0.5,0.25"}, bad, None, [0.5, 0.25], 1)
            for bad in [None, (1.0,), (np.nan, 0.5), np.float32(3.0), "text", np.zeros((2, 2, 2))]
        ),
    ],
)
def test_action_points_from_where_the_robot_is_to_the_target(options, at, xyz, action, fallbacks):
    heuristic = partner(**options)
    seen = np.array(at, dtype=np.float32) if isinstance(at, tuple | list) else at
    for steps in (1, 2):
        taken = heuristic.act(obs_with(seen, xyz))
        assert (taken.dtype, taken.tolist()) == (np.float32, action)
        assert heuristic.fallback_count == fallbacks * steps


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
