"""Choosing episodes of a suite: turns, focus, texts, and the files that hold them."""

import json
import sys
from fnmatch import fnmatch
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from cadenza.loop.scripts import select_episodes
from cadenza.loop.scripts.select_episodes import HubStore, fetch_shards, select_balanced


def chosen(tasks, limit, weights):
    episodes, _ = select_balanced(
        np.arange(len(tasks)),
        np.array(tasks, dtype=np.int64),
        weights=np.array(weights),
        limit=limit,
    )
    return episodes.tolist()


def by_turns(tasks, limit, weights):
    """Choose as a person would, one turn after the other."""
    queues = {t: [e for e, x in enumerate(tasks) if x == t] for t in dict.fromkeys(tasks) if t >= 0}
    taken: list[int] = []
    while any(queues.values()):
        for task, queue in queues.items():
            for _ in range(weights[task]):
                if queue:
                    taken.append(queue.pop(0))
    return sorted(taken[:limit])


@given(
    tasks=st.lists(st.integers(-1, 3), max_size=30),
    limit=st.integers(1, 40),
    weights=st.lists(st.integers(1, 3), min_size=4, max_size=4),
)
def test_choice_equals_one_made_turn_by_turn(tasks, limit, weights):
    assert chosen(tasks, limit, weights) == by_turns(tasks, limit, weights)


def write_dataset(root, tasks, per_file):
    """Write episodes of two frames, ``per_file`` episodes in a data file."""
    meta = root / "meta" / "episodes" / "chunk-000"
    data = root / "data" / "chunk-000"
    for folder in (meta, data):
        folder.mkdir(parents=True)
    count = len(tasks)
    table = {"episode_index": list(range(count)), "tasks": [[task] for task in tasks]}
    pq.write_table(pa.table(table), meta / "file-000.parquet")
    for number, start in enumerate(range(0, count, per_file)):
        frames = np.repeat(np.arange(start, min(start + per_file, count)), 2)
        file = data / f"file-{number:03d}.parquet"
        pq.write_table(pa.table({"episode_index": frames}), file)
    return root


class Hub:
    """Stands in for the client of the hub: its files lie in a folder."""

    def __init__(self, folder):
        self.folder = folder
        self.asked: list[list[str]] = []

    def list_repo_files(self, repo_id, repo_type):
        assert (repo_id, repo_type) == ("owner/ds", "dataset")
        files = (path for path in self.folder.rglob("*") if path.is_file())
        return [path.relative_to(self.folder).as_posix() for path in files]

    def snapshot_download(self, repo_id, repo_type, local_dir, allow_patterns):
        self.asked.append(allow_patterns)
        for name in self.list_repo_files(repo_id, repo_type):
            if any(fnmatch(name, pattern) for pattern in allow_patterns):
                (local_dir / name).parent.mkdir(parents=True, exist_ok=True)
                (local_dir / name).write_bytes((self.folder / name).read_bytes())

    def HfFileSystem(self):  # noqa: N802 - the client's own name
        return self

    def open(self, path, mode):
        assert path.startswith("datasets/owner/ds/")
        return (self.folder / path.removeprefix("datasets/owner/ds/")).open(mode)


def test_dataset_on_the_hub_is_downloaded_as_far_as_needed(tmp_path, monkeypatch):
    hub = Hub(write_dataset(tmp_path / "hub", ["push"] * 8, per_file=2))
    home = SimpleNamespace(HF_LEROBOT_HOME=str(tmp_path / "home"))
    monkeypatch.setitem(sys.modules, "lerobot", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "lerobot.utils", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "lerobot.utils.constants", home)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    store = HubStore("owner/ds")
    episodes, texts = store.first_tasks()
    assert (episodes.tolist(), texts) == (list(range(8)), ["push"] * 8)
    assert fetch_shards(store, np.array([3, 7]), download=True) == (2, 2)
    files = ["data/chunk-000/file-001.parquet", "data/chunk-000/file-003.parquet"]
    assert hub.asked == [["meta/*"], files]
    assert fetch_shards(store, np.array([3, 7]), download=True) == (0, 2)
    assert len(hub.asked) == 2


def test_whole_selection_of_a_suite_among_others(tmp_path, capsys):
    write_dataset(tmp_path / "ds", ["other", "push the T", "Push  the t", "pull"], per_file=2)
    suites = tmp_path / "suites.json"
    suites.write_text(json.dumps({"push": ["push the T", "pull"], "far": ["fly"], "odd": [3]}))
    result = tmp_path / "out" / "result.json"
    words = ["--repo-id=local/x", f"--root={tmp_path / 'ds'}", f"--instructions={suites}"]
    code = select_episodes.main([*words, "--suite=push", "--limit=2", f"--result-json={result}"])
    assert code == 0
    facts = json.loads(result.read_text())
    assert facts == {
        "episodes": [1, 3],
        "selected": 2,
        "suite_tasks": 2,
        "tasks_covered": 2,
        "per_task": {"push_0": 1, "push_1": 1},
        "shards_fetched": 0,
        "shards_needed": 2,
    }
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == facts
    for suite, told in (("far", "episodes of the suite far"), ("odd", "a list of instructions")):
        assert select_episodes.main([*words, f"--suite={suite}"]) == 1
        assert f"expected {told}" in capsys.readouterr().err
