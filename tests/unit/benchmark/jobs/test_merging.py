"""A merged dataset is the one that the writer would have written with all episodes."""

import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cadenza.benchmark.jobs.collecting import Collection, collect
from cadenza.benchmark.jobs.dataset_files import Merge, merge, read_page
from cadenza.core.errors import ConfigurationError, IntegrityError
from cadenza.core.files import tree_digest

EPISODES = "meta/episodes/chunk-000/file-000.parquet"


def collected(root, seed_start, episodes, partners=("crossing_wanderer", "crossing_stationary")):
    collect(
        Collection(
            task="crossing",
            partners=partners,
            episodes=episodes,
            seed_start=seed_start,
            seed_count=episodes,
            repo_id="local/x",
            out=root,
            result=root.with_suffix(".json"),
        )
    )
    return root / "dataset"


def job(tmp_path, *sources, name="merged"):
    return Merge(
        sources=sources,
        repo_id="local/merged",
        out=tmp_path / name,
        result=tmp_path / f"{name}.json",
    )


def read(root, *patterns):
    tables = [pq.read_table(path) for pattern in patterns for path in sorted(root.glob(pattern))]
    return pa.concat_tables(tables).to_pylist()


def test_merged_parts_equal_the_whole(tmp_path):
    # Two episodes from seed 30 and two from seed 32 are the four from seed 30.
    parts = [collected(tmp_path / "a", 30, 2), collected(tmp_path / "b", 32, 2)]
    whole = collected(tmp_path / "whole", 30, 4)
    before = [tree_digest(part) for part in parts]
    result = merge(job(tmp_path, *parts))
    merged = tmp_path / "merged" / "dataset"
    frames = "data/*/*.parquet"
    assert read(merged, frames) == read(whole, frames)
    assert read(merged, "meta/tasks.parquet") == read(whole, "meta/tasks.parquet")
    rows, wanted = read(merged, EPISODES), read(whole, EPISODES)
    for row, want in zip(rows, wanted, strict=True):
        assert row.keys() == want.keys()
        for key in want:
            near = key.startswith("stats/")
            assert np.allclose(row[key], want[key]) if near else row[key] == want[key]
    totals = [json.loads((root / "meta/stats.json").read_text()) for root in (merged, whole)]
    for key, statistics in totals[1].items():
        for name, value in statistics.items():
            assert np.allclose(totals[0][key][name], value, atol=1e-6), (key, name)
    infos = [json.loads((root / "meta/info.json").read_text()) for root in (merged, whole)]
    assert infos[0] == infos[1]
    assert [one["sha256"] for one in result["sources"]] == before
    assert [tree_digest(part) for part in parts] == before
    assert read_page(merged)["episodes"] == read_page(whole)["episodes"]


def test_tasks_keep_their_text_when_their_numbers_change(tmp_path):
    first = collected(tmp_path / "a", 30, 2)
    second = collected(tmp_path / "b", 50, 2, ("crossing_stationary", "crossing_goal_seeker"))
    merge(job(tmp_path, first, second))
    merged = tmp_path / "merged" / "dataset"
    texts = {row["task_index"]: row["__index_level_0__"] for row in read(merged, "meta/tasks.*")}
    by_episode = {
        row["episode_index"]: texts[row["task_index"]] for row in read(merged, "data/*/*")
    }
    rows = read(merged, EPISODES)
    assert [by_episode[row["episode_index"]] for row in rows] == [row["tasks"][0] for row in rows]
    assert len(texts) == 3
    assert rows[2]["stats/task_index/max"] == [1]  # stationary kept the number of the first source
    assert rows[3]["stats/task_index/mean"] == [2.0]


def test_source_without_page_gives_a_dataset_without_page(expert_data, tmp_path):
    foreign = tmp_path / "foreign"
    shutil.copytree(expert_data.root, foreign)
    (foreign / "meta/cadenza.json").unlink()
    result = merge(job(tmp_path, expert_data.root, foreign))
    assert result["dataset"]["episodes"] == 8
    assert read_page(tmp_path / "merged" / "dataset") is None


def test_one_source_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="expected two datasets or more, got 1"):
        job(tmp_path, tmp_path)


def described(change):
    """Return what changes the description of a dataset."""

    def damage(root):
        path = root / "meta/info.json"
        info = json.loads(path.read_text())
        change(info)
        path.write_text(json.dumps(info))

    return damage


def with_tasks(**table):
    return lambda root: pq.write_table(pa.table(table), root / "meta/tasks.parquet")


VIDEO = {"observation.images.front": {"dtype": "video", "shape": [8, 8, 3]}}


@pytest.mark.parametrize(
    ("damage", "error", "told"),
    [
        (described(lambda i: i.update(fps=10)), ConfigurationError, "expected equal fps"),
        (described(lambda i: i.update(robot_type="other")), ConfigurationError, "--sources: expec"),
        (described(lambda i: i["features"].update(VIDEO)), ConfigurationError, "got the video fea"),
        (with_tasks(task_index=[0]), IntegrityError, "expected a table of tasks"),
        (with_tasks(task_index=[3], __index_level_0__=["x"]), IntegrityError, "expected tasks num"),
        (lambda root: shutil.rmtree(root / "meta/episodes"), IntegrityError, "expected tables of"),
    ],
)
def test_source_that_does_not_fit_is_refused(expert_data, tmp_path, damage, error, told):
    other = tmp_path / "other"
    shutil.copytree(expert_data.root, other)
    damage(other)
    with pytest.raises(error, match=told):
        merge(job(tmp_path, expert_data.root, other))
