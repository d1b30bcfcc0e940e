"""Best responses from end to end: trained, killed, resumed, chosen, measured, read by reports."""

import json
import signal
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from cadenza.benchmark.zoo.matrix import open_zoos
from cadenza.benchmark.zoo.pairs import open_pairs
from cadenza.benchmark.zoo.responses import (
    ResponseConfig,
    finished_response,
    train_responses,
)
from cadenza.benchmark.zoo.stacked import SeatedPartners
from cadenza.cli.main import app
from cadenza.core.errors import ConfigurationError
from cadenza.evaluation.best_responses import load_best_responses
from cadenza.learn.nn.portable import load_policy_file
from cadenza.partners.registry import load_partner
from cadenza.partners.zoo_manifest import read_manifest
from tests.e2e.commands import LIMIT_S, warm
from tests.zoo_samples import bytes_of, made, tiny

#: Trains tiny responses and is killed at the given call of what stores a state or a result.
CHILD = """
import os, signal, sys
from pathlib import Path

sys.path.insert(0, str(Path.cwd()))
from cadenza.benchmark.zoo import jobs
from tests.integration.benchmark.test_best_response_training import trained

name, wanted = sys.argv[3], int(sys.argv[4])
original, calls = getattr(jobs, name), []

def fatal(*args, **kwargs):
    calls.append(1)
    if len(calls) == wanted:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*args, **kwargs)

setattr(jobs, name, fatal)
trained(Path(sys.argv[1]), Path(sys.argv[2]), mode="resume")
"""


def budget(**changes):
    settings = {
        "steps": 240,
        "seeds": 2,
        "num_envs": 4,
        "snapshots": 3,
        "episodes": 4,
        "ppo": tiny().ppo,
    }
    return ResponseConfig(**{**settings, **changes})


def trained(zoo, out, *, workers=1, mode="new", progress=None, **changes):
    means = {"workers": workers, "mode": mode, "progress": progress}
    return train_responses(read_manifest(zoo), budget(**changes), zoo=zoo, out=out, **means)


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("zoo")
    made(folder, "scripted")
    return folder


@pytest.fixture(scope="module")
def whole(zoo, tmp_path_factory):
    folder, seen = tmp_path_factory.mktemp("whole"), []
    found = trained(zoo, folder, progress=lambda _, __, last: seen.append(last))
    assert seen[-1].startswith("best response scripted-s0-")
    return folder, found


def test_killed_at_any_time_and_resumed_gives_the_same_bytes(zoo, whole, tmp_path):
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    for where, count in (("save_checkpoint", "3"), ("write_sealed_json", "2")):
        words = (zoo, tmp_path / "killed", where, count)
        ended = warm(script, *words, cwd=Path.cwd(), timeout=LIMIT_S)
        assert ended.code == -signal.SIGKILL, ended.err
    # in two processes, and others go on together
    again = trained(zoo, tmp_path / "killed", mode="resume", workers=2)
    assert again == whole[1]
    assert bytes_of(tmp_path / "killed") == bytes_of(whole[0])


def test_the_better_training_counts_and_is_told_with_its_curve(zoo, whole):
    folder, chosen = whole
    best = load_best_responses(folder / "best-responses.json")
    for name, found in chosen.items():
        candidates = [finished_response(folder, f"{name}-r{k}") for k in (0, 1)]
        assert found.curve[found.best] == max(max(each.curve) for each in candidates)
        assert found.steps == (0, 80, 160, 240)
        network = load_policy_file(folder / "policies" / f"br-{name}.policy.safetensors")
        assert (network.content_id, network.task) == (found.policy, {"id": "mpe_cooperative_push"})
        if found.score.value > found.random.value:
            told = best.partners[name]
            assert (told.value, told.random) == (found.score.value, found.random.value)
            assert (told.sha256, told.curve) == (found.policy, found.curve)
            assert "240 steps, best of 2 trainings" in told.trained
        else:
            assert name not in best.partners


def test_partners_of_an_ego_do_not_depend_on_those_of_others(zoo):
    _, entries = open_zoos([zoo])
    config = budget().played(read_manifest(zoo))
    with closing(open_pairs(config, 8)) as both, closing(open_pairs(config, 4)) as one:
        states = both.reset(list(range(8)))
        partners = [
            [load_partner(e.spec(both.uids[1])) for e in own] for own in (entries, entries[1:])
        ]
        together, alone = SeatedPartners(both, partners[0], 4), SeatedPartners(one, partners[1], 4)
        together.begin([3, 5])
        together.begin_rows(np.array([1, 2, 6]))
        alone.begin([5])
        alone.begin_rows(np.array([2]))
        acted = together.act(states)[4:]
        assert acted.tobytes() == alone.act(states[:, 4:]).tobytes()


def test_other_budgets_and_missing_success_are_refused(zoo, whole):
    with pytest.raises(ConfigurationError, match=r"config\.steps = 240, got 480"):
        trained(zoo, whole[0], mode="resume", steps=480)
    with pytest.raises(ConfigurationError, match="has no success"):
        trained(zoo, whole[0], mode="resume", metric="success")


def test_command_takes_partners_by_name(tmp_path):
    line = (
        "zoo best-response --task crossing --partners crossing_stationary steps=200 num_envs=2 "
        f"snapshots=2 episodes=2 ppo.rollout_length=50 -j 1 --json --out {tmp_path / 'b'}"
    )
    ended = CliRunner().invoke(app, line.split())
    assert ended.exit_code == 0, ended.output
    told = json.loads(ended.stdout)["partners"]["crossing_stationary"]
    assert (told["steps"], told["score"]["metric"]) == ([0, 100, 200], "success")
    refused = CliRunner().invoke(app, ["zoo", "best-response", "--task", "crossing"])
    assert refused.exit_code == 2
    assert "one zoo, or --task, --partners and --option" in refused.stderr
