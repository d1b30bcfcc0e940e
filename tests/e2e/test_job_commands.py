"""`cadenza job ...`: killed and stopped as processes, repeated, and refusing what is wrong."""

import shlex
import signal

import pytest

from tests.e2e.commands import LIMIT_S, cadenza, held_at
from tests.e2e.in_process import here

COLLECT = shlex.split(
    "job collect --task=crossing --partners=crossing_stationary --episodes=2 --seed-start=5 "
    "--seed-count=9 --out=data --repo-id=local/x --result-json=data.json"
)
EVALUATE = shlex.split(
    "job evaluate --policy=train/policy.pt --task=crossing --seed-start=5 --episodes=24 "
    "--batch-size=2 --out=eval --result-json=eval.json"
)


def train(out, steps=20):
    return shlex.split(
        f"job train --rung=bc --dataset=data/dataset --steps={steps} --batch-size=64 --seed=1 "
        f"--out={out} --result-json={out}.json"
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a dataset and a policy."""
    root = tmp_path_factory.mktemp("jobs")
    for command in (COLLECT, train("train")):
        done = here(*command, cwd=root)
        assert done.code == 0, done.err
    return root


def test_terminated_evaluation_says_how_to_go_on(folder):
    running = held_at("00000.json", *EVALUATE, cwd=folder)
    assert (folder / "eval/blocks/00000.json").exists()
    for number in (signal.SIGTERM, signal.SIGCONT):
        running.process.send_signal(number)
    stopped = running.outcome(LIMIT_S)
    assert stopped.code == 143
    assert "run the same command again to continue" in stopped.err
    assert not (folder / "eval.json").exists()
    first = (folder / "eval/blocks/00000.json").stat().st_mtime_ns
    done = cadenza(*EVALUATE, cwd=folder)
    assert done.code == 0, done.err
    assert "of 24 episodes" in done.out
    assert (folder / "eval/blocks/00000.json").stat().st_mtime_ns == first  # not played again


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ("--partners=nobody", 2, "expected default, leaving_way or partners of 'crossing'"),
        ("--policy=none.pt", 10, "payload not found"),
        ("--out=data", 2, "expected the folder of this job, got that of another request"),
        ("--out=data.json", 11, "expected a folder to write to"),
    ],
)
def test_wrong_flag_is_one_clear_error(folder, changes, code, message):
    flag = changes.partition("=")[0]
    words = [word for word in EVALUATE if not word.startswith(f"{flag}=")]
    others = [] if flag == "--out" else ["--out=other"]
    words = [word for word in words if not others or not word.startswith("--out=")]
    done = here(*words, *others, changes, cwd=folder)
    assert done.code == code, done.err
    assert done.out == ""
    assert done.err.startswith("error: ")
    assert message in done.err
    assert len(done.err.splitlines()) == 1
