"""A written LeRobotDataset, read with PyArrow: every value, number, statistic and file."""

import errno
import io
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from cadenza.core.errors import ConfigurationError, InputError, StorageError, UnknownNameError
from cadenza.stream.bridges import lerobot
from cadenza.stream.bridges.episodes import Episode
from cadenza.stream.bridges.lerobot import LeRobotWriter
from cadenza.stream.bridges.lerobot_features import Feature, features_of
from cadenza.stream.layout import BOOKKEEPING, Field
from tests.stream_episodes import random_episode

FIELDS = (
    Field(name="obs.qpos", shape=(4,), dtype="float32", kind="state"),
    Field(name="actions", shape=(3,), dtype="float32"),
    *BOOKKEEPING,
)
CAMERA = Field(name="obs.sensor.front.color", shape=(6, 8, 3), dtype="uint8", kind="state")
FEATURES = features_of(FIELDS, success=True)
LENGTHS = (5, 1, 8)
DATA = "data/chunk-000/file-000.parquet"


def new_episodes(**options) -> list[Episode]:
    rng = np.random.default_rng(11)
    return [random_episode(n, rng, number=i, **options) for i, n in enumerate(LENGTHS)]


def write(root: Path, episodes: list[Episode], features=FEATURES, **options) -> None:
    with LeRobotWriter(root, features, fps=30, **options) as writer:
        for i, episode in enumerate(episodes):
            assert writer.add(episode, f"task {i % 2}") == i


def column(root: Path, name: str, file: str = DATA) -> np.ndarray:
    return np.array(pq.read_table(root / file)[name].to_pylist())


def info(root: Path) -> dict:
    return json.loads((root / "meta/info.json").read_text())


def rows(root: Path) -> list[dict]:
    files = sorted((root / "meta/episodes").glob("*/*.parquet"))
    return [row for file in files for row in pq.read_table(file).to_pylist()]


def test_every_number_is_kept_bit_for_bit(tmp_path: Path) -> None:
    episodes = new_episodes()
    write(tmp_path / "ds", episodes)
    table = pq.read_table(tmp_path / "ds" / DATA)
    assert str(table.schema.field("action").type) == "fixed_size_list<element: float>[3]"
    sources = {
        "observation.state": [e.states["obs.qpos"][:-1] for e in episodes],
        "action": [e.steps["actions"] for e in episodes],
        "next.reward": [e.steps["rewards"] for e in episodes],
        "next.terminated": [e.steps["terminated"] for e in episodes],
        "next.truncated": [e.steps["truncated"] for e in episodes],
        "segment_id": [e.steps["segment_id"] for e in episodes],
        "policy_version": [e.steps["policy_version"] for e in episodes],
    }
    for name, arrays in sources.items():
        expected = np.concatenate(arrays)
        found = np.array(table[name].to_pylist(), dtype=expected.dtype)
        assert found.tobytes() == expected.tobytes(), name
    last = [False] * 4 + [True] + [True] + [False] * 7 + [True]
    assert column(tmp_path / "ds", "next.done").tolist() == last
    assert column(tmp_path / "ds", "next.success").tolist() == last


def test_index_columns_count_frames_episodes_and_tasks(tmp_path: Path) -> None:
    write(tmp_path / "ds", new_episodes())
    frames = [*range(5), 0, *range(8)]
    assert column(tmp_path / "ds", "frame_index").tolist() == frames
    assert column(tmp_path / "ds", "index").tolist() == list(range(14))
    assert column(tmp_path / "ds", "episode_index").tolist() == [0] * 5 + [1] + [2] * 8
    assert column(tmp_path / "ds", "task_index").tolist() == [0] * 5 + [1] + [0] * 8
    schema = pq.read_schema(tmp_path / "ds" / DATA)
    assert str(schema.field("timestamp").type) == "float"
    expected = (np.array(frames) / 30).astype(np.float32)
    np.testing.assert_array_equal(column(tmp_path / "ds", "timestamp"), expected)


def test_images_are_embedded_without_loss(tmp_path: Path) -> None:
    episodes = new_episodes(image=(6, 8))
    write(tmp_path / "ds", episodes, features_of([*FIELDS, CAMERA]))
    table = pq.read_table(tmp_path / "ds" / DATA)
    pictures = table["observation.images.front"].to_pylist()
    expected = np.concatenate([e.states["obs.sensor.front.color"][:-1] for e in episodes])
    found = [np.asarray(Image.open(io.BytesIO(picture["bytes"]))) for picture in pictures]
    np.testing.assert_array_equal(found, expected)
    assert [pictures[4]["path"], pictures[5]["path"]] == ["frame-000004.png", "frame-000000.png"]
    assert all(picture["bytes"].startswith(b"\x89PNG") for picture in pictures)
    library = json.loads(table.schema.metadata[b"huggingface"])["info"]["features"]
    assert library["observation.images.front"] == {"_type": "Image"}
    assert library["next.reward"] == {"dtype": "float32", "_type": "Value"}
    description = info(tmp_path / "ds")["features"]["observation.images.front"]
    assert description == {
        "dtype": "image",
        "shape": [6, 8, 3],
        "names": ["height", "width", "channels"],
    }


def test_description_counts_what_is_there(tmp_path: Path) -> None:
    write(tmp_path / "ds", new_episodes(), robot_type="two-wheels")
    found = info(tmp_path / "ds")
    features = found.pop("features")
    assert found == {
        "codebase_version": "v3.0",
        "robot_type": "two-wheels",
        "total_episodes": 3,
        "total_frames": 14,
        "total_tasks": 2,
        "fps": 30,
        "chunks_size": 1000,
        "data_files_size_in_mb": 100,
        "splits": {"train": "0:3"},
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": None,
    }
    assert list(features) == pq.read_schema(tmp_path / "ds" / DATA).names
    assert features["action"] == {"dtype": "float32", "shape": [3], "names": None}
    assert features["timestamp"] == {"dtype": "float32", "shape": [1], "names": None}


def test_episode_rows_say_where_each_episode_is(tmp_path: Path) -> None:
    episodes = new_episodes()
    write(tmp_path / "ds", episodes)
    found = rows(tmp_path / "ds")
    assert [row["episode_index"] for row in found] == [0, 1, 2]
    assert [row["length"] for row in found] == list(LENGTHS)
    assert [row["tasks"] for row in found] == [["task 0"], ["task 1"], ["task 0"]]
    bounds = [(row["dataset_from_index"], row["dataset_to_index"]) for row in found]
    assert bounds == [(0, 5), (5, 6), (6, 14)]
    for row, episode in zip(found, episodes, strict=True):
        mean = episode.steps["actions"].mean(axis=0, dtype=np.float64)
        np.testing.assert_allclose(row["stats/action/mean"], mean, rtol=1e-12)
        assert row["stats/action/count"] == [episode.length]


def test_statistics_are_those_of_all_frames(tmp_path: Path) -> None:
    episodes = new_episodes(image=(6, 8))
    write(tmp_path / "ds", episodes, features_of([*FIELDS, CAMERA]))
    found = json.loads((tmp_path / "ds/meta/stats.json").read_text())
    assert set(found) == set(info(tmp_path / "ds")["features"])
    state = np.concatenate([e.states["obs.qpos"][:-1] for e in episodes]).astype(np.float64)
    np.testing.assert_allclose(found["observation.state"]["mean"], state.mean(axis=0), rtol=1e-9)
    np.testing.assert_allclose(found["observation.state"]["std"], state.std(axis=0), rtol=1e-9)
    q10 = np.quantile(state, 0.1, axis=0)
    np.testing.assert_allclose(found["observation.state"]["q10"], q10, rtol=1e-9)
    pixels = np.concatenate([e.states["obs.sensor.front.color"][:-1] for e in episodes]) / 255
    image = found["observation.images.front"]
    np.testing.assert_allclose(np.ravel(image["std"]), pixels.std(axis=(0, 1, 2)), rtol=1e-9)
    assert np.shape(image["mean"]) == (3, 1, 1)
    assert image["count"] == [14]
    assert found["index"]["max"] == [13]


#: Files and folders of eight episodes of which three fit into a file, and two files into a folder.
ROLLED = ["chunk-000/file-000.parquet", "chunk-000/file-001.parquet", "chunk-001/file-000.parquet"]


def places(root: Path, what: str) -> list[tuple[int, int]]:
    """Return folder and file of each episode's frames or of its row."""
    return [(row[f"{what}/chunk_index"], row[f"{what}/file_index"]) for row in rows(root)]


def test_full_files_begin_new_ones_and_full_folders_too(tmp_path: Path) -> None:
    # 300 000 bytes of numbers each, and 36 000 of indices: three fit into a megabyte.
    big = Feature(key="x", source="x", shape=(75,), dtype="float32")
    values = np.random.default_rng(0).standard_normal((8, 1000, 75)).astype(np.float32)
    episodes = [Episode(steps={"x": v}, states={}) for v in values]
    write(tmp_path / "ds", episodes, [big], chunks_size=2, data_files_size_in_mb=1)
    files = sorted(str(p.relative_to(tmp_path / "ds/data")) for p in tmp_path.glob("ds/data/*/*"))
    assert files == ROLLED
    assert places(tmp_path / "ds", "data") == [(0, 0)] * 3 + [(0, 1)] * 3 + [(1, 0)] * 2
    first = [column(tmp_path / "ds", "x", f"data/{file}")[::1000] for file in files]
    np.testing.assert_array_equal(np.concatenate(first).astype(np.float32), values[:, 0])
    # The rows are small, and stay in the first file.
    assert places(tmp_path / "ds", "meta/episodes") == [(0, 0)] * 8


def test_flushed_episodes_are_a_dataset_while_the_writer_goes_on(tmp_path: Path) -> None:
    episodes = new_episodes()
    writer = LeRobotWriter(tmp_path / "ds", FEATURES, fps=30)
    writer.add(episodes[0], "go")
    assert not (tmp_path / "ds").exists()
    writer.flush()
    assert [path.name for path in tmp_path.iterdir()] == ["ds"]
    assert info(tmp_path / "ds")["total_frames"] == 5
    writer.add(episodes[1], "go")
    writer.flush()
    writer.flush()  # nothing new
    writer.close()
    writer.close()
    assert info(tmp_path / "ds")["total_episodes"] == 2
    assert [row["data/file_index"] for row in rows(tmp_path / "ds")] == [0, 1]
    assert column(tmp_path / "ds", "index", "data/chunk-000/file-001.parquet").tolist() == [5]


def test_failed_flush_leaves_the_dataset_and_is_made_up_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    episodes = new_episodes()
    writer = LeRobotWriter(tmp_path / "ds", FEATURES, fps=30)
    writer.add(episodes[0], "go")
    writer.flush()
    writer.add(episodes[1], "stop")

    def refuse(path: Path, text: str) -> None:
        raise StorageError(28, f"{path}: disk full")

    with monkeypatch.context() as patch:
        patch.setattr(lerobot, "atomic_write_text", refuse)
        with pytest.raises(StorageError, match="disk full"):
            writer.flush()
    assert info(tmp_path / "ds")["total_episodes"] == 1
    writer.add(episodes[2], "go")
    writer.close()
    assert info(tmp_path / "ds")["total_episodes"] == 3
    assert [row["data/file_index"] for row in rows(tmp_path / "ds")] == [0, 1, 1]
    assert column(tmp_path / "ds", "index", "data/chunk-000/file-001.parquet").tolist() == list(
        range(5, 14)
    )


def test_folder_of_another_dataset_is_refused_and_left_alone(tmp_path: Path) -> None:
    writer = LeRobotWriter(tmp_path / "ds", FEATURES, fps=30)
    writer.add(new_episodes()[0], "go")
    (tmp_path / "ds").mkdir()
    (tmp_path / "ds" / "own.txt").write_text("x")
    for refused in (writer.flush, lambda: LeRobotWriter(tmp_path / "ds", FEATURES, fps=30)):
        with pytest.raises(StorageError, match="expected a folder that does not exist yet"):
            refused()
    assert [path.name for path in tmp_path.rglob("*")] == ["ds", "own.txt"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES])
def test_refused_folder_tells_the_error_of_the_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    writer = LeRobotWriter(tmp_path / "ds", FEATURES, fps=30)
    writer.add(new_episodes()[0], "go")

    def refuse(path: Path, target: Path) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", refuse)
        with pytest.raises(StorageError, match=f"got '{os.strerror(number)}'") as refused:
            writer.flush()
    assert refused.value.errno == number
    assert list(tmp_path.iterdir()) == []
    writer.close()
    assert info(tmp_path / "ds")["total_episodes"] == 1


def _open_below(folder: Path) -> list[str]:
    names = [
        str(entry.readlink()) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()
    ]
    return sorted(name for name in names if name.startswith(str(folder)))


def test_drafts_of_killed_writers_of_the_same_folder_are_removed(tmp_path: Path) -> None:
    def draft(name: str) -> Path:
        (tmp_path / name / "data").mkdir(parents=True)
        return tmp_path / name

    ending = f"{'0' * 16}.cadenza-tmp"
    killed = draft(f".d[s].{ending}")
    others = [draft(name) for name in (f".ds.{ending}", f".d[s].x.{ending}", f".{ending}")]
    with lerobot.new_folder(tmp_path / "d[s]") as at_work:
        (at_work / "own").touch()
        before = _open_below(tmp_path)
        write(tmp_path / "d[s]", new_episodes()[:1])
        assert _open_below(tmp_path) == before
        assert (at_work / "own").exists()
        assert not killed.exists()
        shutil.rmtree(tmp_path / "d[s]")
    assert [path.name for path in (tmp_path / "d[s]").iterdir()] == ["own"]
    assert all(path.exists() for path in others)


def _write_two_of_which_one_lacks_a_field(root: Path) -> None:
    with LeRobotWriter(root, FEATURES, fps=30) as writer:
        writer.add(new_episodes()[0], "go")
        writer.add(Episode(steps={"actions": np.zeros((1, 3))}, states={}), "stop")


def test_episodes_before_an_error_are_kept(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"got 'obs\.qpos'"):
        _write_two_of_which_one_lacks_a_field(tmp_path / "ds")
    assert (info(tmp_path / "ds")["total_episodes"], info(tmp_path / "ds")["total_tasks"]) == (1, 1)
    assert len(rows(tmp_path / "ds")) == 1


def test_dataset_without_episodes_leaves_nothing(tmp_path: Path) -> None:
    with LeRobotWriter(tmp_path / "ds", FEATURES, fps=30):
        pass
    assert list(tmp_path.iterdir()) == []


def test_task_without_words_is_refused(tmp_path: Path) -> None:
    writer = LeRobotWriter(tmp_path / "ds", FEATURES, fps=30)
    with pytest.raises(InputError, match="expected a task in words"):
        writer.add(new_episodes()[0], " ")
    with pytest.raises(InputError, match="expected a task in words, got 3"):
        writer.add(new_episodes()[0], 3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="expected an Episode, got dict; take it"):
        writer.add({}, "go")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("features", [[], [FEATURES[0], FEATURES[0]]])
def test_features_without_distinct_keys_are_refused(tmp_path: Path, features: list) -> None:
    with pytest.raises(ConfigurationError, match="expected features with distinct keys"):
        LeRobotWriter(tmp_path / "ds", features, fps=30)
