"""Collections keep successes only, in order, and a larger one begins with the smaller one."""

from dataclasses import replace

import numpy as np
import pytest

from cadenza.benchmark.jobs.collecting import Collection, collect, harvest
from cadenza.benchmark.jobs.dataset_files import read_frames, read_page
from cadenza.benchmark.jobs.encounters import chosen_partners, job_task
from cadenza.core.errors import ConfigurationError, IntegrityError, NotReadyError


def collection(tmp_path, **changes):
    settings = {
        "task": "crossing",
        "partners": ("leaving_way",),
        "episodes": 2,
        "seed_start": 10,
        "seed_count": 20,
        "repo_id": "local/x",
        "out": tmp_path / "job",
        "result": tmp_path / "result.json",
    }
    return Collection(**(settings | changes))


def test_partners_come_in_turn_from_consecutive_seeds(expert_data):
    page = read_page(expert_data.root)
    leaving = chosen_partners(job_task("crossing"), ("leaving_way",))
    assert [one["partner"] for one in page["episodes"]] == list(leaving)
    assert [one["seed"] for one in page["episodes"]] == [10, 11, 12, 13]
    assert expert_data.result["seeds"] == {"start": 10, "count": 4}
    assert expert_data.result["kept"] == expert_data.result["successes"] == 4


def test_smaller_collection_is_the_beginning_of_the_larger_one(expert_data, tmp_path):
    collect(collection(tmp_path))
    small, large = read_frames(tmp_path / "job" / "dataset"), read_frames(expert_data.root)
    count = len(small.states)
    assert small.episodes.max() == 1
    assert np.array_equal(small.states, large.states[:count])
    assert np.array_equal(small.actions, large.actions[:count])
    assert large.episodes[count] == 2


def test_harvest_of_failed_starts_keeps_what_the_expert_shows_from_them(clone, tmp_path):
    wanted = collection(tmp_path, episodes=16, seed_count=16)
    own = harvest(wanted, policy=clone.path, filtered="off")
    solved = {one["seed"] for one in read_page(wanted.out / "dataset")["episodes"]}
    again = replace(wanted, out=tmp_path / "failed", result=tmp_path / "failed.json")
    shown = harvest(again, policy=clone.path, filtered="off", starts="failed")
    page = read_page(again.out / "dataset")
    assert {one["seed"] for one in page["episodes"]} <= set(range(10, 26)) - solved
    assert (shown["successes"], shown["attempts"]) == (own["kept"], 16)
    assert 0 < shown["kept"] == len(page["episodes"]) <= 16 - own["kept"]
    assert page["source"]["expert"] == "swerve"


def test_harvest_of_unknown_starts_is_refused(clone, tmp_path):
    with pytest.raises(ConfigurationError, match="--starts: expected solved or failed, got 'all'"):
        harvest(collection(tmp_path), policy=clone.path, filtered="off", starts="all")


def test_harvest_without_success_is_a_result(clone, tmp_path):
    result = harvest(
        collection(tmp_path, partners=("crossing_chaser",), seed_count=2),
        policy=clone.path,
        filtered="off",
    )
    assert (result["kept"], result["attempts"], result["dataset"]) == (0, 2, None)
    assert not (tmp_path / "job" / "dataset").exists()


@pytest.mark.parametrize(
    "changes", [{"episodes": 0}, {"episodes": 3, "seed_count": 2}, {"seed_start": -1}]
)
def test_impossible_counts_are_refused(tmp_path, changes):
    with pytest.raises(ConfigurationError, match="expected --episodes >= 1, --seed-count >="):
        collection(tmp_path, **changes)


@pytest.mark.parametrize("expert", ["cover", "nobody"])
def test_expert_of_another_task_is_refused(tmp_path, expert):
    with pytest.raises(ConfigurationError, match=rf"--expert: expected .*swerve.* got '{expert}'"):
        collect(collection(tmp_path), expert=expert)


def test_expert_that_fails_too_often_is_an_error(tmp_path):
    weak = collection(tmp_path, partners=("crossing_chaser",), episodes=6, seed_count=6)
    with pytest.raises(NotReadyError, match="expected 6 successful episodes within 6 attempts"):
        collect(weak, expert="goal_pd")
    assert not (tmp_path / "result.json").exists()


def test_changed_dataset_without_its_page_is_refused(tmp_path):
    collect(collection(tmp_path))
    (tmp_path / "job/dataset/meta/cadenza.json").unlink()
    with pytest.raises(IntegrityError, match="expected the page of this job"):
        collect(collection(tmp_path))


def test_interrupted_collection_keeps_the_blocks_it_has_played(tmp_path):
    def interrupt(_kept, _wanted):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        collect(collection(tmp_path, report=interrupt))
    assert len(list((tmp_path / "job").rglob("blocks/*"))) == 1
