"""Demonstrations of every source come back bit for bit; broken ones are refused by name."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import gymnasium
import h5py
import minari
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cadenza.core.episodes import Column, Episode, Episodes, read_episodes
from cadenza.core.errors import ConfigurationError, InputError, IntegrityError
from cadenza.stream import recorded_draws
from cadenza.stream.bridges.lerobot import LeRobotWriter
from cadenza.stream.bridges.lerobot_features import features_of
from cadenza.stream.bridges.minari import export_to_minari
from cadenza.stream.draw_options import DrawOptions
from cadenza.stream.layout import BOOKKEEPING, Field
from cadenza.stream.slot_reader import SlotReader
from tests import demonstrations as made
from tests.demonstrations import demonstrations, write_lerobot
from tests.stream_episodes import new_store, random_episode, seeded, targets, write_episode

VERSIONS = ("v3.0", "v2.1")
# Minari advises to name authors and environments.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is set to None:UserWarning"),
    pytest.mark.filterwarnings("ignore:env_spec is None:UserWarning"),
]


def require_equal(found: Episode, expected: Episode, *, last: bool) -> None:
    """Compare every number; without ``last``, the last observation is not stored."""
    assert found.observations.keys() == expected.observations.keys()
    for name, values in expected.observations.items():
        kept = values if last else values[: len(expected)]
        np.testing.assert_array_equal(found.observations[name], kept)
    np.testing.assert_array_equal(found.actions, expected.actions)
    np.testing.assert_array_equal(found.rewards, expected.rewards)
    assert found.terminated == expected.terminated
    assert found.truncated == (not expected.terminated)
    assert found.success == expected.success


@pytest.mark.parametrize("version", VERSIONS)
def test_lerobot_episodes_are_the_same_bit_for_bit(tmp_path: Path, version: str) -> None:
    expected = demonstrations()
    episodes = read_episodes(write_lerobot(tmp_path, version, expected))
    assert (len(episodes), episodes.rate_hz) == (3, 20)
    for found, wanted in zip(episodes, expected, strict=True):
        require_equal(found, wanted, last=False)
        assert found.actions.dtype == np.float32
    assert episodes.columns == {
        "observation.state": Column((3,), "float32"),
        "action": Column((2,), "float32"),
        "next.reward": Column((), "float32"),
    }


def test_step_without_a_successor_is_no_target_of_a_value(tmp_path: Path) -> None:
    root = write_lerobot(tmp_path, "v3.0", demonstrations())
    assert [e.targets for e in read_episodes(root)] == [4, 0, 6]  # the second was cut off
    assert [e.targets for e in demonstrations()] == [4, 1, 6]  # its last observation is known
    table = pq.read_table(root / "data/chunk-000/file-000.parquet").drop(["next.terminated"])
    pq.write_table(table, root / "data/chunk-000/file-000.parquet")
    features = made.description("v3.0", made.LENGTHS)
    del features["features"]["next.terminated"]
    (root / "meta/info.json").write_text(json.dumps(features))
    first = read_episodes(root)[0]
    assert (first.terminated, first.truncated, first.targets) == (False, True, 3)


def test_what_our_own_bridge_wrote_is_read(tmp_path: Path) -> None:
    fields = (
        Field(name="obs.qpos", shape=(4,), dtype="float32", kind="state"),
        Field(name="obs.sensor.front.color", shape=(6, 8, 3), dtype="uint8", kind="state"),
        Field(name="actions", shape=(3,), dtype="float32"),
        *BOOKKEEPING,
    )
    rng = np.random.default_rng(2)
    written = [random_episode(n, rng, number=n, image=(6, 8)) for n in made.LENGTHS]
    with LeRobotWriter(tmp_path / "ds", features_of(fields, success=True), fps=30) as writer:
        for episode in written:
            writer.add(episode, "reach")
    for found, wanted in zip(read_episodes(tmp_path / "ds"), written, strict=True):
        np.testing.assert_array_equal(found.observations["state"], wanted.states["obs.qpos"][:-1])
        pixels = wanted.states["obs.sensor.front.color"][:-1]
        np.testing.assert_array_equal(found.observations["images.front"], pixels)
        np.testing.assert_array_equal(found.actions, wanted.steps["actions"])
        assert (found.terminated, found.success) == (True, True)
    shutil.copytree(tmp_path / "ds", tmp_path / "job" / "dataset")
    assert len(read_episodes(tmp_path / "job")) == 3


def test_videos_are_listed_and_the_rest_can_be_read(tmp_path: Path) -> None:
    root = write_lerobot(tmp_path, "v3.0", demonstrations())
    video = {"dtype": "video", "shape": [64, 64, 3], "names": ["height", "width", "channels"]}
    info = made.description("v3.0", made.LENGTHS, **{"observation.images.top": video})
    (root / "meta/info.json").write_text(json.dumps(info))
    with pytest.raises(InputError, match=r"images.top': 'video'.*observations=\['state'\]"):
        read_episodes(root)
    assert [*read_episodes(root, observations=["state"])[0].observations] == ["state"]
    with pytest.raises(InputError, match=r"observations \['depth'\]"):
        read_episodes(root, observations=["depth"])


def change_column(name: str, value: Callable[[Episode], object]) -> Callable[[Path, str], None]:
    def damage(root: Path, version: str) -> None:
        episodes = demonstrations((4, 5, 6))
        shutil.rmtree(root, ignore_errors=True)
        write_lerobot(root, version, episodes, **{name: value(episodes[1])})

    return damage


def with_nan(episode: Episode) -> pa.Array:
    values = episode.actions.copy()
    values[2, 1] = np.nan
    return made.vectors(values, fixed=True)


def doubles(episode: Episode) -> pa.Array:
    return made.vectors(episode.actions.astype(np.float64), fixed=True)


def ragged(episode: Episode) -> pa.Array:
    del episode
    return pa.array([[1.0, 2.0]] * 3 + [[1.0]] * 2, pa.list_(pa.float32()))


def with_a_gap(episode: Episode) -> pa.Array:
    return pa.array([1.0, None, *episode.rewards[2:].tolist()], pa.float32())


def without_a_data_file(root: Path, version: str) -> None:
    names = {"v3.0": "data/chunk-000/file-000.parquet", "v2.1": "data/*/episode_000001.parquet"}
    next(root.glob(names[version])).unlink()


def described(**changes: object) -> Callable[[Path, str], None]:
    def damage(root: Path, version: str) -> None:
        del version
        path = root / "meta/info.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return damage


def listed(change: Callable[[list[dict]], object]) -> Callable[[Path, str], None]:
    """Change the list of episodes."""

    def damage(root: Path, version: str) -> None:
        if version == "v3.0":
            path = root / "meta/episodes/chunk-000/file-000.parquet"
            rows = pq.read_table(path).to_pylist()
            change(rows)
            pq.write_table(pa.Table.from_pylist(rows), path)
        else:
            path = root / "meta/episodes.jsonl"
            rows = [json.loads(line) for line in path.read_text().splitlines()]
            change(rows)
            path.write_text("\n".join(map(json.dumps, rows)))

    return damage


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (change_column("action", with_nan), "episode 1, column 'action': expected finite"),
        (
            change_column("next__reward", with_a_gap),
            "episode 1, column 'next.reward': expected one number everywhere",
        ),
        (
            change_column("frame_index", lambda _: pa.array([0, 1, 1, 3, 4])),
            "episode 1, column 'frame_index': expected 2 at place 2, got 1",
        ),
        (
            change_column("frame_index", lambda _: pa.array([-1, 0, 1, 2, 3])),
            "episode 1, column 'frame_index': expected 0 at place 0, got -1",
        ),
        (
            change_column("next__terminated", lambda _: pa.array([True] * 5)),
            "episode 1, column 'terminated': expected true in the last step alone",
        ),
        (without_a_data_file, "expected a readable Parquet file"),
        (described(total_episodes=4), "expected total_episodes 3"),
        (described(total_frames=4), "expected total_frames 11"),
        (described(data_path="../{episode_index}.parquet"), "'data_path' to name its file inside"),
        (described(data_path="{episode_index.real}"), "expected a pattern 'data_path'"),
        (listed(lambda rows: rows[1].update(length=2)), "expected total_frames 12"),
        (listed(lambda rows: rows[1].update(episode_index=-1)), "expected 1 at place 1, got -1"),
        (listed(lambda rows: rows[2].update(episode_index=3)), "expected 2 at place 2, got 3"),
        (listed(lambda rows: rows[2].update(episode_index=1)), "expected 2 at place 2, got 1"),
    ],
)
def test_broken_lerobot_folder_is_refused(tmp_path: Path, version, damage, told: str) -> None:
    root = write_lerobot(tmp_path / "ds", version, demonstrations())
    damage(root, version)
    with pytest.raises(IntegrityError, match=re.escape(told)):
        list(read_episodes(root))


@pytest.mark.parametrize(
    ("values", "told"),
    [(ragged, "expected 2 entries, got 1 at frame 3"), (doubles, "expected float32 as described")],
)
def test_column_of_another_shape_or_type_is_refused(tmp_path: Path, values, told: str) -> None:
    change_column("action", values)(tmp_path / "ds", "v2.1")
    with pytest.raises(IntegrityError, match=f"episode 1, column 'action': {told}"):
        list(read_episodes(tmp_path / "ds"))


def test_lerobot_of_another_layout_is_refused(tmp_path: Path) -> None:
    root = write_lerobot(tmp_path, "v3.0", demonstrations())
    described(codebase_version="v1.6")(root, "v3.0")
    with pytest.raises(ConfigurationError, match=r"version v3\.0 or v2\.1, got 'v1\.6'"):
        read_episodes(root)


def test_link_out_of_a_dataset_is_not_followed(tmp_path: Path) -> None:
    root = write_lerobot(tmp_path / "ds", "v2.1", demonstrations())
    file = root / "data/chunk-000/episode_000001.parquet"
    file.rename(tmp_path / "outside.parquet")
    file.symlink_to(tmp_path / "outside.parquet")
    with pytest.raises(IntegrityError, match="episode 1: expected 'data_path' to name its file"):
        read_episodes(root)


@pytest.fixture
def minari_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    rng = np.random.default_rng(21)
    episodes = [random_episode(n, rng, number=n) for n in made.LENGTHS]
    export_to_minari(episodes, "cadenza/cart-v0")
    return tmp_path / "cadenza" / "cart-v0"


def test_minari_episodes_are_the_same_bit_for_bit(minari_folder: Path) -> None:
    rng = np.random.default_rng(21)
    wanted = [random_episode(n, rng, number=n) for n in made.LENGTHS]
    for path in (minari_folder, minari_folder / "data"):
        for found, episode in zip(read_episodes(path), wanted, strict=True):
            np.testing.assert_array_equal(found.observations["qpos"], episode.states["obs.qpos"])
            np.testing.assert_array_equal(found.actions, episode.steps["actions"])
            np.testing.assert_array_equal(found.rewards, episode.steps["rewards"])
            assert (found.terminated, found.success) == (True, True)
            assert found.targets == len(found)


def test_minari_dataset_of_another_writer_is_read(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    env = gymnasium.make("CartPole-v1")
    states, over = [env.reset(seed=3)[0]], False
    while not over:
        state, _, over, _, _ = env.step(1)
        states.append(state)
    steps = len(states) - 1
    ends = [False] * (steps - 1) + [True]
    buffer = minari.data_collector.EpisodeBuffer(
        observations=np.array(states),
        actions=np.ones(steps, np.int64),
        rewards=[1.0] * steps,
        terminations=ends,
        truncations=[False] * steps,
    )
    minari.create_dataset_from_buffers("poles-v0", [buffer], env="CartPole-v1")
    (episode,) = read_episodes(tmp_path / "poles-v0")
    np.testing.assert_array_equal(episode.observations["state"], states)
    assert episode.actions.tolist() == [1] * steps
    assert episode.terminated
    assert episode.success is None


def test_broken_minari_folder_is_refused(minari_folder: Path) -> None:
    path = minari_folder / "data" / "main_data.hdf5"
    with h5py.File(path, "a") as file:
        del file["episode_1"]["rewards"]
        file["episode_1"]["rewards"] = np.array([np.nan], np.float32)
    with pytest.raises(IntegrityError, match=r"episode 1, column 'next\.reward': expected finite"):
        list(read_episodes(minari_folder))
    with h5py.File(path, "a") as file:
        del file["episode_1"]["rewards"]
    with pytest.raises(IntegrityError, match="episode 1, column 'observations'"):
        list(read_episodes(minari_folder))
    with h5py.File(path, "a") as file:
        file["episode_1"]["rewards"] = h5py.ExternalLink("/etc/other.hdf5", "/")
    with pytest.raises(IntegrityError, match="its own data alone, got a link at 'rewards'"):
        read_episodes(minari_folder)
    path.write_bytes(b"nothing")
    with pytest.raises(IntegrityError, match="expected an HDF5 file"):
        read_episodes(minari_folder)


def test_npz_folder_and_npz_file_hold_the_same(tmp_path: Path) -> None:
    expected = demonstrations()
    folder = read_episodes(made.write_npz(tmp_path / "folder", expected))
    for found, wanted in zip(folder, expected, strict=True):
        require_equal(found, wanted, last=True)
    flags = [(np.arange(len(e)) == len(e) - 1) & e.terminated for e in expected]
    np.savez(
        tmp_path / "all.npz",
        **{
            "observation.state": np.concatenate([e.observations["state"][:-1] for e in expected]),
            "action": np.concatenate([e.actions for e in expected]),
            "next.reward": np.concatenate([e.rewards for e in expected]),
            "terminated": np.concatenate(
                [f & e.terminated for f, e in zip(flags, expected, strict=True)]
            ),
            "success": np.concatenate(
                [f & e.success for f, e in zip(flags, expected, strict=True)]
            ),
            "episode_ends": np.cumsum([len(e) for e in expected]),
        },
    )
    for found, wanted in zip(read_episodes(tmp_path / "all.npz"), expected, strict=True):
        require_equal(found, wanted, last=False)


def test_files_are_read_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    episodes = demonstrations(range(1, 13))
    found = read_episodes(made.write_npz(tmp_path / "folder", episodes))
    assert [len(episode) for episode in found] == list(range(1, 13))
    assert [len(episode) for episode in found[2:4]] == [3, 4]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"actions": np.zeros((4, 2), np.float32)}, "'observation.state': expected 4 or 5 entries"),
        ({"actions": np.zeros((1, 3), np.float32)}, "column 'action': expected Column(shape=(2,)"),
        ({"rewards": np.array([np.inf], np.float32)}, "column 'next.reward': expected finite"),
        ({"rewards": np.zeros(4, np.float32)}, "column 'next.reward': expected 1 entries, got 4"),
        ({"actions": np.array([["a", "b"]])}, "column 'action': expected numbers, got <U1"),
        ({"terminated": np.array([2])}, "column 'terminated': expected 1 truth values"),
        ({"observations": np.zeros((2, 3))}, "expected Column(shape=(3,), dtype='float32'), got"),
        (
            {"actions": np.array([{}], dtype=object)},
            "column 'actions': expected an NPZ file",
        ),
    ],
)
def test_broken_npz_episode_is_refused(tmp_path: Path, change, told: str) -> None:
    root = made.write_npz(tmp_path / "folder", demonstrations())
    np.savez(root / "episode_1.npz", **made.npz_arrays(demonstrations()[1]) | change)
    with pytest.raises(IntegrityError, match=re.escape(told)) as caught:
        list(read_episodes(root))
    assert "episode 1" in str(caught.value)


def test_npz_that_is_cut_off_or_ends_elsewhere_is_refused(tmp_path: Path) -> None:
    root = made.write_npz(tmp_path / "folder", demonstrations())
    whole = (root / "episode_2.npz").read_bytes()
    (root / "episode_2.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(IntegrityError, match="episode 2"):
        list(read_episodes(root))
    for ends in ([3, 3, 5], [3, 4], [-1, 5], [2.0, 5.0]):
        arrays = {"action": np.zeros(5), "observation": np.zeros((5, 2))}
        np.savez(tmp_path / "all.npz", **arrays, episode_ends=np.array(ends))
        with pytest.raises(IntegrityError, match="column 'episode_ends': expected numbers"):
            read_episodes(tmp_path / "all.npz")


def test_csv_file_and_csv_folder_hold_the_same(tmp_path: Path) -> None:
    expected = demonstrations()
    whole = read_episodes(made.write_csv(tmp_path / "all.csv", expected))
    (tmp_path / "folder").mkdir()
    for number, episode in enumerate(expected):
        rows = [row[1:] for row in made.csv_rows(episode, 0)]
        lines = [made.CSV_HEADER.partition(",")[2], *(",".join(map(str, row)) for row in rows)]
        (tmp_path / "folder" / f"run {number}.csv").write_text("\r\n".join(lines))
    for one, other, wanted in zip(whole, read_episodes(tmp_path / "folder"), expected, strict=True):
        require_equal(one, wanted, last=False)
        require_equal(other, wanted, last=False)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("\n1,0,", "\n2,0,", "episode 1, column 'episode_index': expected 1 next, got 2"),
        ("\n1,0,", "\n-1,0,", "episode 1, column 'episode_index': expected 1 next, got -1"),
        ("\n2,3,", "\n0,3,", "episode 3, column 'episode_index': expected 3 next, got 0"),
        ("\n2,3,", "\n2,2,", "episode 2, column 'frame_index': expected 3 next, got 2"),
        ("\n2,3,", "\n2,3,,", "episode 2, column 'success': expected a cell a column"),
        ("\n2,3,", "\n2,3\n2,4,", "episode 2, column 'observation.0': expected a cell a column"),
        ("action.1", "action.2", "column 'action.2': expected action.1 next"),
        (r"\n2,3,[^,]*", r"\n2,3,nan", "episode 2, column 'observation.state': expected finite"),
        (r"\n2,3,[^,]*", r"\n2,3,", "episode 2, column 'observation.0': expected a number, got ''"),
        ("reward", "action.0", "expected each column once"),
    ],
)
def test_broken_csv_is_refused(tmp_path: Path, old: str, new: str, told: str) -> None:
    path = made.write_csv(tmp_path / "all.csv", demonstrations())
    path.write_text(re.sub(old, new, path.read_text(), count=1))
    with pytest.raises(IntegrityError, match=re.escape(told)):
        list(read_episodes(path))


def test_recording_of_a_stream_is_read(tmp_path: Path) -> None:
    store = new_store(slots=5)
    for first, ending in ((10, "terminated"), (20, "truncated"), (30, "terminated")):
        write_episode(store, 4, first, ending=ending)
    recorder = recorded_draws.RecordingReader(SlotReader(store), store, tmp_path)
    generator = seeded()
    for _ in range(20):
        recorder.draw(4, 2, targets(store, 4, 2), generator, DrawOptions())
    recorder.close()
    episodes = read_episodes(tmp_path)
    assert [int(e.actions[0, 0]) for e in episodes] == [10, 20, 30]
    first = episodes[0]
    assert first.observations["state"].tolist() == [[10 + t, -10 - t] for t in range(5)]
    assert first.rewards.tolist() == [10, 11, 12, 13]
    assert [e.terminated for e in episodes] == [True, False, True]
    assert [e.success for e in episodes] == [True, False, True]
    (next((tmp_path / "episodes").iterdir())).write_bytes(b"")
    with pytest.raises(IntegrityError, match=r"recording .*: expected"):
        list(read_episodes(tmp_path))


def test_selection_summary_and_digest() -> None:
    episodes = Episodes.of(demonstrations(), rate_hz=20)
    assert episodes.summary().splitlines() == [
        "episodes: 3 episodes, 11 steps at 20 Hz",
        "  observation.state: float32 (3,)",
        "  action: float32 (2,)",
        "  next.reward: float32 ()",
        "  success: 2 of 3 judged; terminated: 2",
    ]
    changed = demonstrations()
    changed[2].actions[0, 0] += 1
    digests = [Episodes.of(listed).sha256() for listed in (demonstrations(), changed)]
    assert digests[0] == episodes.sha256() != digests[1]
    assert episodes[:2].sha256() != digests[0]
    with pytest.raises(InputError, match="expected at least one episode"):
        episodes[:0]


def test_what_is_no_source_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing", tmp_path / "a.txt"):
        with pytest.raises(InputError, match="expected a LeRobot or Minari dataset, NPZ or CSV"):
            read_episodes(path)
    (tmp_path / "recordings.json").write_text("{}")
    with pytest.raises(InputError, match="positions that a report shows, without actions"):
        read_episodes(tmp_path)
    np.savez(tmp_path / "a.npz", observation=np.zeros((3, 1)))
    with pytest.raises(InputError, match="expected a column 'action' and observations"):
        read_episodes(tmp_path / "a.npz")


def test_reading_needs_no_torch() -> None:
    code = "import cadenza.core.episodes, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
