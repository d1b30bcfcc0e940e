"""What scripts do with datasets, as far as no LeRobot is needed: frames, blends, comparisons."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cadenza.loop.scripts import collect_rollouts
from cadenza.loop.scripts.blending import chosen, reduced, relabelled
from cadenza.loop.scripts.files import partial_of, publish
from cadenza.loop.scripts.frames import tensors_of
from cadenza.loop.scripts.infos import difference, read_info

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


def dataset(root: Path, info: dict[str, Any] = INFO) -> Path:
    (root / "meta").mkdir(parents=True)
    (root / "data").mkdir()
    (root / "meta" / "info.json").write_text(json.dumps(info))
    return root


def observed() -> dict[str, Any]:
    picture = torch.zeros(1, 3, 2, 4)
    picture[0, 0, 1, 2] = 0.5  # 127.5 rounds to the even 128
    picture[0, 1, 0, 0] = 1.7  # beyond white
    return {
        "observation.image": picture,
        "observation.state": torch.tensor([[1.0, 2.0]], dtype=torch.float64),
        "task": ["push"],
        "observation.robot_state": {"nested": torch.zeros(1)},
    }


def test_pictures_become_bytes_and_the_rest_float32() -> None:
    found = tensors_of(observed())
    assert sorted(found) == ["observation.image", "observation.state"]
    image, state = found["observation.image"], found["observation.state"]
    assert (image.shape, image.dtype) == ((2, 4, 3), np.uint8)
    assert (image[1, 2, 0], image[0, 0, 1], image[0, 0, 0]) == (128, 255, 0)
    assert state.dtype == np.float32
    assert state.tolist() == [1.0, 2.0]


def test_words_that_make_no_sense_are_a_usage_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--env-type=p", "--task=t", f"--out={tmp_path / 'o'}", "--repo-id=a/b", "--seed=1"]
    for extra, message in {
        f"--policy-path={tmp_path / 'none'}": "--policy-path: expected a folder",
        f"--policy-path={tmp_path} --seeds=4": "expected known flags, got ['--seeds=4']",
    }.items():
        with pytest.raises(SystemExit) as error:
            collect_rollouts.main([*words, *extra.split()])
        assert error.value.code == 2
        assert message in capsys.readouterr().err


def test_blend_leaves_out_episodes_until_the_share_is_right() -> None:
    # Eight of 10 frames against two of 10: for one half, two of the eight stay, evenly spread.
    assert chosen([10] * 10, list(range(8)), [8, 9], 0.5) == [0, 4, 8, 9]
    # For one tenth of four and four: 40 frames of data allow 4.4 of the mix, less than an episode.
    assert chosen([10] * 8, [0, 1, 2, 3], [4, 5, 6, 7], 0.1) == [0, 1, 2, 3, 4]


@given(own=st.integers(1, 60), mixed=st.integers(1, 60), ratio=st.floats(0.05, 0.95))
def test_share_is_as_near_as_whole_episodes_allow(own: int, mixed: int, ratio: float) -> None:
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


def test_mix_takes_labels_of_the_data_and_keeps_its_frames(tmp_path: Path) -> None:
    other = copy.deepcopy(INFO)
    other["robot_type"], other["features"]["action"]["names"] = None, None
    mix = dataset(tmp_path / "mix", other)
    (mix / "data" / "frames").write_text("x")
    data = dataset(tmp_path / "data")
    view = relabelled(mix, like=data, view=tmp_path / "view")
    assert read_info(view) == INFO
    assert (view / "data" / "frames").read_text() == "x"
    assert read_info(mix) == other
    assert reduced(mix, to=data, out=tmp_path / "few") == mix  # nothing to leave out


def changed(path: str, value: object) -> dict[str, Any]:
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
def test_datasets_differ_in_what_lerobot_compares(
    other: dict[str, Any], expected: str | None
) -> None:
    found = difference(INFO, other)
    assert (found or "").startswith(expected or "")
    assert (found is None) == (expected is None)
    labels = expected is not None and ("robot_type" in expected or "names" in expected)
    assert (difference(INFO, other, labels=False) is None) == (labels or expected is None)


def test_folder_gets_its_name_when_it_is_whole(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "dataset"
    for old in (out, out.with_name("dataset.partial")):
        old.mkdir(parents=True)
        (old / "old").touch()
    partial = partial_of(out)
    assert not partial.exists()
    assert not out.exists()
    partial.mkdir()
    (partial / "new").write_text("x")
    publish(partial, out)
    assert [child.name for child in out.iterdir()] == ["new"]
    assert not partial.exists()
