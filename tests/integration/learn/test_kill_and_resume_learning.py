"""`kill -9` at random moments, then resume: the end is that of the unbroken run, bit for bit."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.campaigns import size
from tests.e2e.commands import Started, environment
from tests.integration.learn.resume_process import WAITS

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).resolve().parents[3]
#: Steps of the whole training, 2N; PPO counts rollouts.
STEPS = size(60, 240)
#: Sleep per step of the runs that are killed, so that a random moment is inside the training.
PACE_S = 0.02
PATIENCE_S = 800.0


PROGRAM = "tests.integration.learn.resume_process"


def start(algorithm: str, folder: Path, pace_s: float = 0.0) -> Started:
    words = [algorithm, str(folder), str(STEPS), str(pace_s)]
    return Started(PROGRAM, *words, cwd=REPOSITORY, new_session=True)


def unbroken_run(algorithm: str, folder: Path) -> dict[str, str]:
    """Train to the end in a fresh interpreter, so with a hash seed of its own."""
    subprocess.run(
        [sys.executable, "-m", PROGRAM, algorithm, folder, str(STEPS), "0.0"],
        cwd=REPOSITORY,
        env=environment(),
        check=True,
        timeout=PATIENCE_S,
    )
    return json.loads((folder / "digest.json").read_text(encoding="utf-8"))


def finished(algorithm: str, folder: Path) -> dict[str, str]:
    """Train to the end and return one digest per part."""
    done = start(algorithm, folder).outcome(PATIENCE_S)
    assert done.code == 0, done.err
    return json.loads((folder / "digest.json").read_text(encoding="utf-8"))


def checkpoints(folder: Path) -> list[tuple[str, int]]:
    """Return names and times of the checkpoints that are there."""
    files = [*folder.glob("checkpoints/*.tar"), *folder.glob("ppo.pt")]
    found = []
    for file in files:
        try:
            found.append((file.name, file.stat().st_mtime_ns))
        except FileNotFoundError:  # replaced or deleted in this moment
            continue
    return sorted(found)


def kill_at_a_random_moment(algorithm: str, folder: Path, chance: random.Random) -> None:
    """Let a run write some checkpoints, wait a moment within a step or two, and kill it."""
    before = set(checkpoints(folder))
    started = start(algorithm, folder, PACE_S)
    process = started.process
    deadline = time.monotonic() + PATIENCE_S
    new: set[tuple[str, int]] = set()
    wanted = chance.randint(1, 3)
    while len(new) < wanted and not (folder / WAITS).exists():
        assert time.monotonic() < deadline, "no checkpoint came"
        assert process.poll() is None, f"it ended too soon: {started.outcome(1.0).err}"
        new |= set(checkpoints(folder)) - before
        time.sleep(0.002)
    time.sleep(chance.uniform(0.0, 5 * PACE_S))
    assert process.poll() is None, "it ended before it could be killed"
    os.killpg(process.pid, signal.SIGKILL)
    assert started.outcome(PATIENCE_S).code == -signal.SIGKILL
    assert not (folder / "digest.json").exists()
    (folder / WAITS).unlink(missing_ok=True)


@pytest.mark.parametrize(
    "algorithm",  # the model-based one contains SAC
    size(["ppo", "model_based"], ["dqn", "sac", "ppo", "dagger", "model_based"]),
)
def test_killed_training_ends_with_the_bits_of_the_unbroken_one(algorithm, tmp_path):
    unbroken = unbroken_run(algorithm, tmp_path / "unbroken")
    seed = time.time_ns()  # another moment in every run; a failure shows which
    sys.stdout.write(f"seed {seed}\n")
    chance = random.Random(seed)  # noqa: S311
    for _ in range(size(1, 2)):
        kill_at_a_random_moment(algorithm, tmp_path / "broken", chance)
    broken = finished(algorithm, tmp_path / "broken")
    assert broken == unbroken
    assert len(set(unbroken.values())) == len(unbroken)  # each digest is of something of its own
