"""What scripts do with datasets, as far as no LeRobot is needed: frames, blends, comparisons."""

import copy
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cadenza.loop.scripts import collect_rollouts, merge_datasets
from cadenza.loop.scripts.blending import chosen, reduced, relabelled
from cadenza.loop.scripts.collect_rollouts import instruction, turns
from cadenza.loop.scripts.files import ScriptError, partial_of, publish, write_result
from cadenza.loop.scripts.frames import episode_frames, features_of, tensors_of
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


def test_stored_values_do_not_follow_later_changes() -> None:
    seen = {"observation.state": torch.ones(1, 2, dtype=torch.float32)}
    kept = tensors_of(seen)
    seen["observation.state"] *= 5
    assert kept["observation.state"].tolist() == [1.0, 1.0]


def test_features_follow_what_was_seen() -> None:
    features = features_of(tensors_of(observed()), (2,))
    assert features["observation.image"] == {
        "dtype": "video",
        "shape": (2, 4, 3),
        "names": ["height", "width", "channels"],
    }
    assert features["observation.state"]["shape"] == (2,)
    assert features["action"] == {"dtype": "float32", "shape": (2,), "names": None}


def test_every_frame_has_what_was_seen_and_then_done() -> None:
    seen = [{"observation.state": np.full(1, i, np.float32)} for i in range(2)]
    frames = list(episode_frames(seen, np.array([[5.0], [6.0]])))
    assert [(f["observation.state"][0], f["action"][0]) for f in frames] == [(0, 5), (1, 6)]
    with pytest.raises(ValueError, match="zip"):
        list(episode_frames(seen, np.zeros((3, 1))))


def test_tasks_in_focus_have_two_turns() -> None:
    assert turns(["a_0", "a_1", "a_2"], ["a_1"]) == [0, 1, 2, 1]
    with pytest.raises(ScriptError, match=r"expected some of a_0, got .'b_0'"):
        turns(["a_0"], ["b_0"])


def test_instruction_is_the_environments_own_if_it_has_one() -> None:
    silent = SimpleNamespace(envs=[object()])
    assert instruction("pusht", "pusht_0", silent) == "pusht:pusht/0"
    talking = SimpleNamespace(
        envs=[SimpleNamespace(task_description="")], call=lambda name: (f"the {name}",)
    )
    assert instruction("libero", "libero_10_3", talking) == "the task_description"


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


@given(
    own=st.integers(1, 60),
    mixed=st.integers(1, 60),
    ratio=st.floats(0.05, 0.95),
)
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
        (changed("codebase_version", "v2.1"), "codebase_version 'v2.1' instead of 'v3.0'"),
        (changed("robot_type", "arm"), "robot_type 'arm' instead of 'pusher'"),
        (changed("features/action", None), "no action"),
        (changed("features/other", {}), "other as well"),
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


def test_datasets_that_differ_are_not_merged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    roots = f"{dataset(tmp_path / 'a')},{dataset(tmp_path / 'b', changed('fps', 30))}"
    words = [f"--roots={roots}", f"--out={tmp_path / 'out'}", "--repo-id=local/m"]
    assert merge_datasets.main(words) == 2
    assert "fps 30 instead of 10; datasets that differ cannot be joined" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        merge_datasets.main([*words, "--repo-ids=local/a"])
    assert "expected a name per folder, got 1 for 2" in capsys.readouterr().err


def test_folder_that_is_no_dataset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ScriptError, match="expected a dataset in"):
        read_info(tmp_path)
    with pytest.raises(ScriptError, match=r"expected features in .*, got 3"):
        read_info(dataset(tmp_path / "x", {"features": 3}))


def test_result_is_whole_and_numbers_are_finite(tmp_path: Path) -> None:
    path = tmp_path / "new" / "result.json"
    write_result(path, {"b": 1, "a": [2]})
    assert json.loads(path.read_text()) == {"a": [2], "b": 1}
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_result(path, {"a": float("nan")})
    assert [child.name for child in path.parent.iterdir()] == ["result.json"]


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
