"""What scripts do with datasets, as far as no LeRobot is needed: frames, blends, comparisons."""

import copy
import json
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cadenza.loop.scripts.collect_rollouts import tensors_of
from cadenza.loop.scripts.files import difference
from cadenza.loop.scripts.merge_datasets import chosen, reduced, relabelled

INFO: dict[str, Any] = {
    "codebase_version": "v3.0",
    "fps": 10,
    "robot_type": "pusher",
    "total_episodes": 2,
    "features": {
        "action": {"dtype": "float32", "shape": [2], "names": ["x", "y"]},
        "next.reward": {"dtype": "float32", "shape": [1], "names": None},
    },
}


def dataset(root, info=INFO):
    (root / "meta").mkdir(parents=True)
    (root / "data").mkdir()
    (root / "meta" / "info.json").write_text(json.dumps(info))
    return root


def observed():
    picture = torch.zeros(1, 3, 2, 4)
    picture[0, 0, 1, 2] = 0.5  # 127.5 rounds to the even 128
    picture[0, 1, 0, 0] = 1.7  # beyond white
    return {
        "observation.image": picture,
        "observation.state": torch.tensor([[1.0, 2.0]], dtype=torch.float64),
        "task": ["push"],
        "observation.robot_state": {"nested": torch.zeros(1)},
    }


def test_pictures_become_bytes_and_the_rest_float32():
    found = tensors_of(observed())
    assert sorted(found) == ["observation.image", "observation.state"]
    image, state = found["observation.image"], found["observation.state"]
    assert (image.shape, image.dtype) == ((2, 4, 3), np.uint8)
    assert (image[1, 2, 0], image[0, 0, 1], image[0, 0, 0]) == (128, 255, 0)
    assert state.dtype == np.float32
    assert state.tolist() == [1.0, 2.0]


def test_blend_leaves_out_episodes_until_the_share_is_right():
    # Eight of 10 frames against two of 10: for one half, two of the eight stay, evenly spread.
    assert chosen([10] * 10, list(range(8)), [8, 9], 0.5) == [0, 4, 8, 9]
    # For one tenth of four and four: 40 frames of data allow 4.4 of the mix, less than an episode.
    assert chosen([10] * 8, [0, 1, 2, 3], [4, 5, 6, 7], 0.1) == [0, 1, 2, 3, 4]


@given(own=st.integers(1, 60), mixed=st.integers(1, 60), ratio=st.floats(0.05, 0.95))
def test_share_is_as_near_as_whole_episodes_allow(own, mixed, ratio):
    found = chosen([10] * (own + mixed), list(range(own)), list(range(own, own + mixed)), ratio)
    mine = sum(episode < own for episode in found)
    other = len(found) - mine
    assert mine >= 1
    assert other >= 1
    assert mine == own or other == mixed  # only the larger side loses episodes
    assert len(set(found)) == len(found)
    if mine == own:
        assert other == 1 or abs(other - own * ratio / (1 - ratio)) <= 0.5 + 1e-9 or other == mixed
    else:
        assert mine == 1 or abs(mine - mixed * (1 - ratio) / ratio) <= 0.5 + 1e-9


def changed(path, value):
    info: dict[str, Any] = copy.deepcopy(INFO)
    place = info
    *folders, last = path.split("/")
    for folder in folders:
        place = place[folder]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return info


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (INFO, None),
        (changed("fps", 30), "fps 30 instead of 10"),
        (changed("robot_type", "arm"), "robot_type 'arm' instead of 'pusher'"),
        (changed("features/action", None), "no action"),
        (changed("features/action/shape", [3]), "action with shape [3] instead of [2]"),
        (changed("features/action/names", ["u", "v"]), "action with names"),
    ],
)
def test_datasets_differ_in_what_lerobot_compares(other, expected):
    found = difference(INFO, other)
    assert (found or "").startswith(expected or "")
    assert (found is None) == (expected is None)
    labels = expected is not None and ("robot_type" in expected or "names" in expected)
    assert (difference(INFO, other, labels=False) is None) == (labels or expected is None)


def test_blend_leaves_out_features_that_only_one_dataset_has(tmp_path, monkeypatch):
    rollouts = copy.deepcopy(INFO)
    del rollouts["features"]["next.reward"]
    own, other = dataset(tmp_path / "own"), dataset(tmp_path / "other", rollouts)
    removed = []
    tools = SimpleNamespace(remove_feature=lambda *of: removed.append(of))
    known = SimpleNamespace(LeRobotDataset=lambda name, *, root: root)
    monkeypatch.setitem(sys.modules, "lerobot", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "lerobot.datasets", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "lerobot.datasets.dataset_tools", tools)
    monkeypatch.setitem(sys.modules, "lerobot.datasets.lerobot_dataset", known)
    assert reduced(other, to=own, out=tmp_path / "out") == other
    assert not removed
    reduced(own, to=other, out=tmp_path / "out")
    assert removed == [(own, ["next.reward"], tmp_path / "out", "local/few")]


def test_mix_is_seen_with_the_labels_of_the_dataset(tmp_path):
    own = dataset(tmp_path / "own")
    mix = dataset(tmp_path / "mix", changed("features/action/names", ["u"]) | {"robot_type": "arm"})
    view = relabelled(mix, like=own, view=tmp_path / "view")
    assert json.loads((view / "meta" / "info.json").read_text()) == INFO
    assert (view / "data").resolve() == mix / "data"
    assert not (view / "videos").is_symlink()
