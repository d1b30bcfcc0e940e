"""A refused job leaves nothing behind and replaces nothing; numbers that are none are refused."""

import math
from functools import partial
from pathlib import Path

import pytest

from cadenza.benchmark.jobs.cloning import Training, train
from cadenza.benchmark.jobs.encounters import Encounters, job_task
from cadenza.benchmark.output_folder import open_job_folder
from cadenza.benchmark.stream_tasks import EXPERTS, LawPolicy
from cadenza.core.errors import (
    ConfigurationError,
    InputError,
    IntegrityError,
    NotReadyError,
    StorageError,
)
from cadenza.core.strict_json import parse_json_object


@pytest.mark.parametrize("folder", ["new/deep/job", "empty", "full"])
def test_job_that_fails_before_it_kept_anything_leaves_nothing(folder, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    result = tmp_path / "result.json"
    with (
        pytest.raises((NotReadyError, ConfigurationError)),
        open_job_folder(tmp_path / folder, "train", {"steps": 1}, result=result),
    ):
        raise NotReadyError("the task cannot be made")
    assert sorted(tmp_path.rglob("*")) == before


def test_job_that_fails_later_keeps_what_it_made(tmp_path):
    def work():
        with open_job_folder(tmp_path / "job", "train", {}) as folder:
            folder.work.mkdir()
            (folder.work / "block").touch()
            raise NotReadyError("stopped")

    with pytest.raises(NotReadyError):
        work()
    assert {path.name for path in (tmp_path / "job").iterdir()} == {"job.json", "job.lock", "work"}


def test_result_of_another_job_or_another_file_is_not_replaced(tmp_path):
    result = tmp_path / "result.json"
    for _ in range(2):  # its own one may be written again
        with open_job_folder(tmp_path / "good", "train", {"steps": 9}, result=result) as folder:
            folder.write_result(result, {"loss": 0.1})
    kept = result.read_bytes()
    for other in ({"steps": 1}, {}):
        with pytest.raises(ConfigurationError, match="result of this very job, got that of"):
            open_job_folder(tmp_path / "bad", "train", other, result=result).__enter__()
    notes = tmp_path / "notes.json"
    notes.write_text("{}")
    with pytest.raises(ConfigurationError, match="got another file"):
        open_job_folder(tmp_path / "bad", "train", {}, result=notes).__enter__()
    with pytest.raises(StorageError, match="/proc"):
        open_job_folder(tmp_path / "bad", "train", {}, result=Path("/proc/x.json")).__enter__()
    assert (result.read_bytes(), notes.read_text()) == (kept, "{}")
    assert not (tmp_path / "bad").exists()


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
def test_numbers_that_are_none_are_no_strict_json(text):
    with pytest.raises(IntegrityError, match="expected strict JSON"):
        parse_json_object(f'{{"overall": {{"avg": [1.0, {text}]}}}}'.encode(), source="eval_info")
    assert parse_json_object(b'{"a": 1.7e308}', source="x") == {"a": 1.7e308}


def test_training_that_diverges_is_told_and_leaves_no_policy(expert_data, tmp_path):
    out = tmp_path / "job"
    with pytest.raises(ConfigurationError, match=r"--learning-rate: .*after 1 updates; lower it"):
        train(
            Training(
                rung="bc",
                dataset=expert_data.root,
                steps=9,
                batch_size=4,
                learning_rate=1e30,
                seed=0,
                out=out,
                result=tmp_path / "result.json",
            )
        )
    assert list(tmp_path.iterdir()) == []


def test_episode_with_a_reward_that_is_no_number_is_refused(monkeypatch):
    task = job_task("crossing")
    ego = partial(LawPolicy, law=EXPERTS["goal_pd"].law)
    with Encounters(task, filtered=False, make_policy=ego) as encounters:
        encounters.play(task.partners[0], 3)
        env = encounters._world(task.partners[0])[1]._env
        step = type(env).step
        monkeypatch.setattr(
            type(env), "step", lambda *given: (lambda r: (r[0], math.nan, *r[2:]))(step(*given))
        )
        with pytest.raises(InputError, match="reward: expected finite numbers, got nan"):
            encounters.play(task.partners[0], 4)
