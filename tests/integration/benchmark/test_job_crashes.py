"""A job that dies at any durable step and runs again leaves the bytes of an undisturbed one."""

import re

import pytest

from cadenza.benchmark.jobs import cloning, collecting
from cadenza.benchmark.jobs.cloning import Training, train
from cadenza.benchmark.jobs.collecting import collect, harvest
from cadenza.benchmark.jobs.dataset_files import Merge, merge
from cadenza.benchmark.jobs.encounters import Encounters, Evaluation, evaluate
from tests.campaigns import size
from tests.integration.benchmark.job_crashes import deaths, dies_after, tree
from tests.unit.benchmark.jobs.test_collecting import collection as collection_in


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
def episodes_played_once(monkeypatch):
    """Each episode of a test is played once: it follows from ego, partner and seed alone.

    Processes that die take over what was played before them; a test has one ego.
    """
    real, played = Encounters.play, {}

    def play(self, partner, seed):
        if (partner, seed) not in played:
            played[partner, seed] = real(self, partner, seed)
        return played[partner, seed]

    monkeypatch.setattr(Encounters, "play", play)


def collection(root, **changes):
    alone = {"partners": ("crossing_stationary",), "seed_start": 40, "seed_count": 6}
    return collection_in(root, **(alone | {"out": root, "result": root / "result.json"} | changes))


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


def require_equal_after_any_crash(folder, job):
    """Let ``job`` die at each of its durable steps, run it again, and compare the folders.

    Returns:
        Number of durable steps it could die at.
    """
    with deaths(folder / "undisturbed", folder / "died") as died:
        job(folder / "undisturbed")
    wanted = tree(folder / "undisturbed")
    for step, root in list(enumerate(died))[:: size(3, 1)]:
        again = folder / "again" / str(step)
        if step % 4 == 1:  # and once more, on the way back
            with deaths(root, again) as died_again:
                job(root)
            second = died_again[len(died_again) // 2]
            job(second)
            assert tree(second) == wanted, f"died at durable step {step} and on the way back"
        else:
            job(root)
        assert tree(root) == wanted, f"died at durable step {step}"
    return len(died)


@pytest.mark.parametrize("step", size([9], [0, 9, 22]))
def test_dead_process_leaves_what_the_copies_show(tmp_path, expert, monkeypatch, step):
    monkeypatch.setattr(cloning, "SAVE_EVERY", 4)
    whole, dead = tmp_path / "whole", tmp_path / "dead"
    with deaths(whole, tmp_path / "died") as died:
        train(training(expert, whole))
    assert dies_after(step, lambda: train(training(expert, dead)))
    copied, left = tree(died[step]), tree(dead)
    assert sorted(map(without_number, left)) == sorted(map(without_number, copied))
    assert sorted(left.values()) == sorted(copied.values())


def without_number(name):
    """A file's name without the random part of a temporary one."""
    return re.sub(r"\.[0-9a-f]+\.cadenza-tmp$", "", name)


def test_training(tmp_path, expert, monkeypatch):
    monkeypatch.setattr(cloning, "SAVE_EVERY", 4)
    points = require_equal_after_any_crash(tmp_path, lambda root: train(training(expert, root)))
    assert points > 20  # two saves of the state, the policy, claim and result


def test_training_goes_on_where_it_was(tmp_path, expert, monkeypatch):
    monkeypatch.setattr(cloning, "SAVE_EVERY", 4)
    whole, updates = tmp_path / "whole", []
    with deaths(whole, tmp_path / "died") as died:
        train(training(expert, whole))
    # the first save is there, the second is not
    root = next(root for root in died if (root / "work" / "state.pt").exists())
    real = cloning.batch_rows
    monkeypatch.setattr(
        cloning,
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
                sources=(source, source), repo_id="local/m", out=root, result=root / "result.json"
            )
        )

    assert require_equal_after_any_crash(tmp_path, job) > 10
