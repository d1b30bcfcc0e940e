"""`kill -9`, then `--resume`: nothing is lost and nothing is done twice."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.e2e.commands import (
    LIMIT_S,
    REPOSITORY,
    arguments,
    cadenza,
    environment,
    held_at,
    wait_for,
)

pytestmark = pytest.mark.slow

TRAINING = [
    "train",
    REPOSITORY / "configs" / "train" / "crossing.yaml",
    "total_frames=6144",
    "checkpoint_every=1024",
    "happo.rollout_length=512",
]


def test_training_that_is_asked_to_stop_says_how_to_go_on_and_keeps_its_checkpoints(tmp_path):
    words = [*TRAINING, "total_frames=6000000", "evaluation.every_frames=0"]
    with subprocess.Popen(
        arguments(*words), cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            # older ones are deleted
            wait_for(lambda: any(tmp_path.rglob("*-state_step*.pt.json")), process)
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=LIMIT_S)
        finally:
            process.kill()
    assert process.returncode == 143
    assert err.splitlines()[-1] == (  # after lines of progress on a slow machine
        "error: stopped; finished work is kept, run the same command with --resume to go on"
    )
    (log,) = tmp_path.rglob("*.jsonl")
    last = json.loads(log.read_text(encoding="utf-8").splitlines()[-1])
    assert last["event"] == "training_failed"
    assert len(weights(tmp_path)) >= 1


def weights(folder: Path) -> dict[str, str]:
    """Return the digest of every policy checkpoint below ``folder`` by name."""
    return {
        path.name: json.loads(path.read_text(encoding="utf-8"))["sha256"]
        for path in folder.rglob("*step*.pt.json")
        if "state" not in path.name
    }


def test_guarded_batch_killed_ends_with_the_weights_of_an_unbroken_run(tmp_path):
    words = [*TRAINING, "env.num_envs=8", "happo.rollout_length=64", "env.episode_length=60"]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir()
    broken.mkdir()
    unbroken = cadenza(*words, "--json", cwd=whole)
    assert unbroken.code == 0, unbroken.err
    killed = held_at("*-state_step2048.pt", *words, cwd=broken, new_session=True)
    os.killpg(killed.process.pid, signal.SIGKILL)  # with its children
    assert killed.outcome(LIMIT_S).code == -signal.SIGKILL
    finished = cadenza(*words, "--resume", "--json", cwd=broken)
    assert finished.code == 0, finished.err
    assert finished.json["resumed_from"] is not None
    assert finished.json["mean_reward_last_10"] == unbroken.json["mean_reward_last_10"]
    assert len(weights(whole)) == 6
    assert weights(broken) == weights(whole)
    records = [
        next(
            json.loads(line)
            for line in (folder / outcome.json["log"]).read_text().splitlines()
            if "safety_telemetry_final" in line
        )
        for folder, outcome in ((whole, unbroken), (broken, finished))
    ]
    assert records[0]["n_filter_calls"] == 6144
    assert records[0]["lambda_mean"] == records[1]["lambda_mean"]
