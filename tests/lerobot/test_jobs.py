"""Single jobs of the back end with the real LeRobot: plumbing and seeds, not what policies can do.

State-only ACT with some 100 thousand parameters on PushT, CPU, offline.
"""

import subprocess
from pathlib import Path

import numpy as np
import pytest

from cadenza.loop.backends.lerobot import LeRobotBackend
from cadenza.loop.constitution import Roots, load_constitution
from cadenza.loop.contracts.records import DataRequest, EvalRequest, Proposal, TrainRequest
from cadenza.loop.jobs.terms import ProgramTable
from cadenza.loop.schedule import seed_range
from tests.lerobot.pusht_loop import SMALL, settings

pytestmark = [pytest.mark.lerobot, pytest.mark.slow, pytest.mark.usefixtures("offline")]

#: Longest time one job may take here, s; a cold disk makes ten seconds a minute.
LIMIT_S = 800.0
SEED = 3
WEIGHTS = "model.safetensors"
STATES = "--env.obs_type=environment_state_agent_pos"
PUSHT = {"task_suite": "PushT-v0", "env_args": [STATES, "--env.episode_length=12"]}


class Bench:
    """Runs plans as a loop would: cleared by the shipped rules, resolved by the program table."""

    def __init__(self, folder, config):
        self.folder = folder
        self.backend = LeRobotBackend(config)
        self.rules = load_constitution(None)
        self.roots = Roots(write=(folder,), read=(Path(str(config.seed_root)),))
        self.programs = ProgramTable(self.backend.programs)

    def run(self, plan):
        command = self.programs.resolve(self.rules.clear(plan.command, self.roots).argv())
        log = plan.output_dir.with_name(f"{plan.output_dir.name}.log")
        with log.open("ab") as output:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                timeout=LIMIT_S,
                check=False,
            )
        assert done.returncode == 0, log.read_text()[-4000:]


@pytest.fixture(scope="module")
def bench(scripted, tmp_path_factory):
    return Bench(tmp_path_factory.mktemp("jobs"), settings(scripted / "demonstrations", **PUSHT))


@pytest.fixture(scope="module")
def data(bench):
    proposal = Proposal(
        action="reuse_seed", dataset="local/demonstrations", num_episodes=3, notes="three"
    )
    seeds = seed_range(SEED, "data", 0, count=3)
    request = DataRequest(cycle=0, proposal=proposal, seeds=seeds, folder=bench.folder / "data")
    assert bench.backend.plan_data(request) is None
    return bench.backend.read_data(request)


def training(bench, data, stage):
    return TrainRequest(
        cycle=0,
        rung="act",
        init=None,
        dataset=data,
        steps=20,
        batch_size=2,
        extra_args=SMALL,
        folder=bench.folder / stage,
    )


@pytest.fixture(scope="module")
def policy(bench, data):
    request = training(bench, data, "train")
    bench.run(bench.backend.plan_train(request))
    return bench.backend.read_train(request)


def test_evaluation_lists_every_episode_with_its_seed(bench, policy):
    seeds = seed_range(SEED, "compare", 0, count=3)
    requests = [
        EvalRequest(
            cycle=0,
            checkpoint=policy,
            seeds=seeds,
            batch_size=batch,
            extra_args=("--policy.device=cpu",),
            folder=bench.folder / f"eval_{batch}",
        )
        for batch in (3, 2)  # two does not divide three: LeRobot plays a fourth and drops it
    ]
    reports = []
    for request in requests:
        bench.run(bench.backend.plan_eval(request))
        reports.append(bench.backend.read_eval(request))
    first, second = reports
    assert [(one.task, one.seed) for one in first.outcomes] == [
        ("pusht_0", seeds.start + i) for i in range(3)
    ]
    assert first.per_task == {"pusht_0": first.success_rate}
    scores = [one.score for one in first.outcomes]
    assert all(score is not None and 0.0 <= score <= 1.0 for score in scores)
    np.testing.assert_allclose([one.score or 0 for one in second.outcomes], scores, atol=0.05)
