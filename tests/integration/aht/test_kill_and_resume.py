"""A training process that is killed with SIGKILL and resumed gives the bytes of an unbroken one."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[3]
CHILD = Path(__file__).with_name("training_process.py")
FRAMES = 6144


def child(folder: Path) -> subprocess.Popen:
    """Start training on crossing, behind the filter, beside a partner with a memory."""
    command = [
        sys.executable,
        str(CHILD),
        str(ROOT / "configs" / "train" / "crossing.yaml"),
        f"total_frames={FRAMES}",
        "checkpoint_every=700",
        "partner.class_name=crossing_wanderer",
        "~partner.extra",
        "happo.rollout_length=512",
        "evaluation.every_frames=2048",
        "evaluation.episodes=2",
        "happo.batch_size=128",
        f"artifacts_root='{folder}'",
        f"log_dir='{folder / 'logs'}'",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def finish(folder: Path) -> str:
    """Let a process run to its end; return its last line."""
    with child(folder) as process:
        output = process.communicate(timeout=200)[0]
    assert process.returncode == 0
    return output.splitlines()[-1]


def kill_at(folder: Path, frames: int, delay_s: float) -> None:
    """Kill a process a moment after it reports at least ``frames``."""
    with child(folder) as process:
        for line in process.stdout:
            if line.strip().isdigit() and int(line) >= frames:
                break
        time.sleep(delay_s)
        process.send_signal(signal.SIGKILL)
        process.stdout.read()
    assert process.returncode == -signal.SIGKILL


def results(folder: Path) -> dict[str, bytes]:
    """Bytes of every policy checkpoint and of the reward curve, by file name."""
    kept = [p for p in (folder / "artifacts").iterdir() if "-state_" not in p.name]
    return {p.name: p.read_bytes() for p in kept if p.suffix == ".pt" or "curve" in p.name}


@pytest.mark.slow
def test_training_killed_at_three_random_moments_resumes_to_the_same_bytes(tmp_path):
    # One moment each: before the first checkpoint, around the middle, near the end. The wait after
    # the report is random as well, so the kill may fall into a step, an update or a save.
    rng = np.random.default_rng(int.from_bytes(os.urandom(4)))
    moments = [
        (int(rng.integers(1, 600)), 0.0),
        (int(rng.integers(1500, 3000)), float(rng.uniform(0, 0.1))),
        (int(rng.integers(3500, 5000)), float(rng.uniform(0, 0.1))),
    ]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert finish(whole) == "finished completed"
    for frames, delay_s in moments:
        kill_at(broken, frames, delay_s)
    assert finish(broken) == "finished completed", moments
    expected, actual = results(whole), results(broken)
    assert sorted(actual) == sorted(expected), moments
    assert len([name for name in expected if name.endswith(".pt")]) == 9  # 700 ... 5600, 6144
    for name, content in expected.items():
        assert actual[name] == content, (name, moments)
    (log,) = (broken / "logs").glob("*.jsonl")
    events = [json.loads(line) for line in log.read_text().splitlines()]
    assert [e["event"] for e in events].count("training_resumed") >= 1
    assert [e["step"] for e in events if e["event"] == "eval"] == [2048, 4096, 6144]
    saved = [e["step"] for e in events if e["event"] == "checkpoint_saved"]
    assert saved == [*range(700, FRAMES, 700), FRAMES]
    assert finish(broken) == "finished already_finished"
