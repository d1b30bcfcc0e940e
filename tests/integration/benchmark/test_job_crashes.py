"""A job that dies at any durable step and runs again leaves the bytes of an undisturbed one."""

import os

import pytest

from cadenza.benchmark.jobs import cloning_job, collecting
from cadenza.benchmark.jobs.cloning_job import Training, train
from cadenza.benchmark.jobs.collecting import Collection, collect, harvest
from cadenza.benchmark.jobs.evaluating import Evaluation, evaluate
from cadenza.benchmark.jobs.merging import Merge, merge
from tests.integration.benchmark.job_crashes import crash_points, dies_after, tree


@pytest.fixture(scope="module")
def expert(tmp_path_factory):
    """Folder of a collection of two episodes."""
    root = tmp_path_factory.mktemp("expert") / "job"
    collect(collection(root))
    return root


@pytest.fixture(scope="module")
def policy(expert, tmp_path_factory):
    """Checkpoint of a clone that succeeds now and then."""
    root = tmp_path_factory.mktemp("policy") / "job"
    train(training(expert, root, steps=200))
    return root / "policy.pt"


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch):
    """Waiting for the disk changes nothing here: processes die, the machine does not."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def collection(root, **changes):
    settings = {
        "task": "crossing",
        "partners": ("crossing_stationary",),
        "episodes": 2,
        "seed_start": 40,
        "seed_count": 6,
        "repo_id": "local/x",
        "out": root,
        "result": root / "result.json",
    }
    return Collection(**(settings | changes))


def training(expert, root, **changes):
    settings = {
        "rung": "bc",
        "dataset": expert / "dataset",
        "steps": 12,
        "batch_size": 32,
        "seed": 3,
        "out": root,
        "result": root / "result.json",
    }
    return Training(**(settings | changes))


def require_equal_after_any_crash(tmp_path, job):
    """Let ``job`` die at each of its durable steps, run it again, and compare the folders.

    Returns:
        Number of durable steps it could die at.
    """
    job(tmp_path / "undisturbed")
    wanted = tree(tmp_path / "undisturbed")
    for point in crash_points():
        root = tmp_path / f"crash{point}"
        if not dies_after(point, lambda root=root: job(root)):
            return point
        if point % 4 == 1:  # and once more, on the way back
            dies_after(point // 2, lambda root=root: job(root))
        job(root)
        assert tree(root) == wanted, f"died at durable step {point}"
    pytest.fail("the job never ended")


def test_training(tmp_path, expert, monkeypatch):
    monkeypatch.setattr(cloning_job, "SAVE_EVERY", 4)
    points = require_equal_after_any_crash(tmp_path, lambda root: train(training(expert, root)))
    assert points > 20  # two saves of the state, the policy, claim and result


def test_training_goes_on_where_it_was(tmp_path, expert, monkeypatch):
    monkeypatch.setattr(cloning_job, "SAVE_EVERY", 4)
    root, updates = tmp_path / "job", []
    for point in crash_points():  # the first save is there, the second is not
        dies_after(point, lambda: train(training(expert, root)))
        if (root / "work" / "state.pt").exists():
            break
    real = cloning_job.batch_rows
    monkeypatch.setattr(
        cloning_job,
        "batch_rows",
        lambda settings, update, **others: (
            updates.append(update) or real(settings, update, **others)
        ),
    )
    train(training(expert, root))
    assert updates == list(range(4, 12))


def test_collection(tmp_path, monkeypatch):
    monkeypatch.setattr(collecting, "BLOCK", 1)
    assert require_equal_after_any_crash(tmp_path, lambda root: collect(collection(root))) > 10


def test_harvest_with_and_without_success(tmp_path, policy, monkeypatch):
    monkeypatch.setattr(collecting, "BLOCK", 2)
    kept = {}
    for partner in ("crossing_stationary", "crossing_chaser"):

        def job(root, partner=partner):
            wanted = collection(root, partners=(partner,), seed_count=4)
            kept[partner] = harvest(wanted, policy=policy, filtered="off")["kept"]

        require_equal_after_any_crash(tmp_path / partner, job)
    assert kept["crossing_chaser"] == 0


def test_evaluation(tmp_path, policy):
    def job(root):
        evaluate(
            Evaluation(
                policy=policy,
                task="crossing",
                seed_start=7,
                episodes=3,
                batch_size=1,
                out=root,
                result=root / "result.json",
            )
        )

    assert require_equal_after_any_crash(tmp_path, job) > 10


def test_merge(tmp_path, expert):
    def job(root):
        source = expert / "dataset"
        merge(
            Merge(
                sources=(source, source),
                repo_id="local/m",
                out=root,
                result=root / "result.json",
            )
        )

    assert require_equal_after_any_crash(tmp_path, job) > 10
