"""The loop over the real LeRobot: plumbing, seeds, kills. What the policies can do is no subject.

State-only ACT with 121 thousand parameters on PushT, CPU, offline.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from cadenza.core.errors import ConfigurationError
from cadenza.core.files import sha256_file
from cadenza.loop.backends.base import (
    DataRequest,
    EvalRequest,
    HarvestRequest,
    JobPlan,
    MergeRequest,
    TrainRequest,
)
from cadenza.loop.backends.lerobot import LeRobotBackend
from cadenza.loop.config import LoopConfig
from cadenza.loop.constitution import Roots, load_constitution
from cadenza.loop.contracts.records import CheckpointRecord, DatasetRef, Proposal
from cadenza.loop.events.reading import read_events
from cadenza.loop.jobs.programs import ProgramTable
from cadenza.loop.orchestrator.seeds import SeedLedger
from cadenza.loop.store.jobstore import JobStore
from tests.lerobot.pusht_loop import settings

pytestmark = [pytest.mark.lerobot, pytest.mark.slow, pytest.mark.timeout(900)]

#: Longest time one job may take here, s; a cold disk makes ten seconds a minute.
LIMIT_S = 400.0
LEDGER = SeedLedger(3)
WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module", autouse=True)
def offline() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.delenv("PYTHONPATH", raising=False)
        yield


def scripted(root: Path, episodes: int = 4, steps: int = 40, size: int = 0) -> Path:
    program = Path(__file__).with_name("scripted_pusht.py")
    words = [str(root), str(episodes), str(steps), str(size)]
    subprocess.run(
        [os.environ["CADENZA_LEROBOT_PYTHON"], str(program), *words],
        check=True,
        capture_output=True,
        timeout=LIMIT_S,
    )
    return root


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return scripted(tmp_path_factory.mktemp("seed") / "demonstrations")


class Bench:
    """Runs plans as a loop would: cleared by the shipped rules, resolved by the program table."""

    def __init__(self, folder: Path, config: LoopConfig) -> None:
        self.folder = folder
        self.backend = LeRobotBackend(config)
        self.rules = load_constitution(None)
        self.roots = Roots(write=(folder,), read=(Path(str(config.seed_root)),))
        self.programs = ProgramTable(self.backend.programs)

    def start(self, plan: JobPlan) -> subprocess.Popen[bytes]:
        command = self.programs.resolve(self.rules.clear(plan.command, self.roots).argv())
        with self.log(plan).open("ab") as log:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def run(self, plan: JobPlan) -> None:
        code = self.start(plan).wait(LIMIT_S)
        assert code == 0, self.log(plan).read_text()[-4000:]

    def log(self, plan: JobPlan) -> Path:
        return plan.output_dir.with_name(f"{plan.output_dir.name}.log")


@pytest.fixture(scope="module")
def bench(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    folder = tmp_path_factory.mktemp("jobs")
    return Bench(folder, settings(folder, dataset))


@pytest.fixture(scope="module")
def data(bench: Bench) -> DatasetRef:
    proposal = Proposal(
        action="reuse_seed", dataset="local/demonstrations", num_episodes=3, notes="three"
    )
    seeds = LEDGER.range("data", 0, count=3)
    request = DataRequest(cycle=0, proposal=proposal, seeds=seeds, folder=bench.folder / "data")
    assert bench.backend.plan_data(request) is None
    return bench.backend.read_data(request)


def training(bench: Bench, data: DatasetRef, stage: str, **changes: object) -> TrainRequest:
    request = TrainRequest(
        cycle=0,
        rung="act",
        init=None,
        dataset=data,
        steps=20,
        batch_size=2,
        extra_args=bench.backend._config.train.extra_args,
        folder=bench.folder / stage,
    )
    return request.model_copy(update=changes)


@pytest.fixture(scope="module")
def policy(bench: Bench, data: DatasetRef) -> CheckpointRecord:
    request = training(bench, data, "train")
    bench.run(bench.backend.plan_train(request))
    return bench.backend.read_train(request)


def test_release_is_found_with_its_flags(bench: Bench) -> None:
    found = bench.backend.capabilities
    assert found["lerobot"].startswith("0.4.")
    assert found["train_eval_flag"] == "eval_freq"
    assert found["edit_dataset_merge"] == "home"


def test_data_is_the_part_of_the_seed_dataset_that_is_asked_for(data: DatasetRef) -> None:
    assert data.episodes == (0, 1, 2)
    assert data.num_episodes == 3
    assert data.sha256 is not None


def test_training_leaves_a_policy_of_all_its_steps(policy: CheckpointRecord) -> None:
    path = Path(policy.path)
    state = path.parent / "training_state" / "training_step.json"
    assert json.loads(state.read_text())["step"] == 20
    config = json.loads((path / "train_config.json").read_text())
    assert config["dataset"]["episodes"] == [0, 1, 2]
    assert config["num_workers"] == 0


def test_evaluation_lists_every_episode_with_its_seed(
    bench: Bench, policy: CheckpointRecord
) -> None:
    seeds = LEDGER.range("compare", 0, count=3)
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


def test_harvest_merge_and_blend(bench: Bench, data: DatasetRef, policy: CheckpointRecord) -> None:
    harvests = []
    for cycle in (0, 1):
        seeds = LEDGER.range("harvest", cycle, count=4)
        assert not seeds.overlaps(LEDGER.range("compare", cycle, count=2**16))
        request = HarvestRequest(
            cycle=cycle,
            checkpoint=policy,
            episodes=2,
            seeds=seeds,
            focus=("pusht_0",),
            repo_id=f"local/rollouts-{cycle}",
            extra_args=("--keep-failures",),
            folder=bench.folder / f"harvest_{cycle}",
        )
        bench.run(bench.backend.plan_harvest(request))
        harvests.append(bench.backend.read_harvest(request))
        result = json.loads((request.folder / "result.json").read_text())
        assert [one["seed"] for one in result["episodes"]] == [seeds.start, seeds.start + 1]
    assert [(one.kept, one.attempts, one.successes) for one in harvests] == [(2, 2, 0)] * 2
    sources = tuple(one.dataset for one in harvests if one.dataset is not None)
    merging = MergeRequest(sources=sources, repo_id="local/mix", folder=bench.folder / "merge")
    bench.run(bench.backend.plan_merge(merging))
    mix = bench.backend.read_merge(merging)
    assert mix.num_episodes == 4
    # The mix has 4 x 40 frames, the data 3 x 40: at one half, one of the mix's episodes goes.
    adapting = training(bench, data, "adapt", init=policy.path, mix=mix, mix_ratio=0.5, steps=10)
    adapting = adapting.model_copy(
        update={"extra_args": ("--policy.device=cpu", "--save_freq=5", "--log_freq=5")}
    )
    bench.run(bench.backend.plan_train(adapting))
    adapted = bench.backend.read_train(adapting)
    assert adapted.sha256 != policy.sha256
    config = json.loads((Path(adapted.path) / "train_config.json").read_text())
    assert len(config["dataset"]["episodes"]) == 6
    assert config["dataset"]["episodes"][:3] == [0, 1, 2]


def test_without_successes_nothing_is_kept_and_that_is_no_error(
    bench: Bench, policy: CheckpointRecord
) -> None:
    request = HarvestRequest(
        cycle=2,
        checkpoint=policy,
        episodes=1,
        seeds=LEDGER.range("harvest", 2, count=2),
        repo_id="local/none",
        folder=bench.folder / "harvest_none",
    )
    bench.run(bench.backend.plan_harvest(request))
    harvest = bench.backend.read_harvest(request)
    assert (harvest.kept, harvest.successes, harvest.attempts) == (0, 0, 2)
    assert harvest.dataset is None
    assert not (request.folder / "dataset").exists()


def test_pictures_of_another_size_are_refused_before_any_compute(
    bench: Bench, data: DatasetRef, tmp_path: Path
) -> None:
    bench.backend.check_features(data, None)  # states fit
    pictures = DatasetRef(
        repo_id="local/large", root=str(scripted(tmp_path / "large", 1, 3, size=384))
    )
    config = settings(tmp_path, tmp_path / "large")
    seen = config.eval.model_copy(update={"env_args": ("--env.obs_type=pixels_agent_pos",)})
    backend = LeRobotBackend(config.model_copy(update={"eval": seen}))
    with pytest.raises(ConfigurationError, match=r"3x384x384 of dataset .* got 3x96x96"):
        backend.check_features(pictures, None)
    with pytest.raises(ConfigurationError, match=r"observation.environment_state: expected it of"):
        backend.check_features(data, None)


def wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not path.exists():
        assert process.poll() is None, "it ended too early"
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_training_killed_after_a_checkpoint_goes_on_from_it(bench: Bench, data: DatasetRef) -> None:
    request = training(bench, data, "killed_late", steps=300)
    plan = bench.backend.plan_train(request)
    process = bench.start(plan)
    wait_for(request.folder / "checkpoints" / "last", process)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    bench.run(plan)
    assert "training goes on at step" in bench.log(plan).read_text()
    assert bench.backend.read_train(request).sha256
    bench.run(plan)  # once more: there is nothing left to do
    assert "training had ended at step 300" in bench.log(plan).read_text()


def test_training_killed_before_a_checkpoint_starts_over_to_the_same_bytes(
    bench: Bench, data: DatasetRef, policy: CheckpointRecord
) -> None:
    request = training(bench, data, "killed_early")
    half_made = request.folder / "checkpoints" / "000010" / "pretrained_model"
    half_made.mkdir(parents=True)
    (half_made / WEIGHTS).write_bytes(b"half")
    bench.run(bench.backend.plan_train(request))
    again = bench.backend.read_train(request)
    assert sha256_file(Path(again.path) / WEIGHTS) == sha256_file(Path(policy.path) / WEIGHTS)


def test_two_cycles_with_a_controller_that_is_killed_while_it_trains(
    dataset: Path, tmp_path: Path
) -> None:
    program = Path(__file__).with_name("pusht_loop.py")
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, str(program), str(tmp_path), str(dataset), "loop"]
    environ = {**os.environ, "PYTHONPATH": str(root)}
    log = tmp_path / "controller.log"
    train = tmp_path / "runs" / "loop" / "cycle_0" / "train"
    with log.open("wb") as output:
        first = subprocess.Popen(command, env=environ, stdout=output, stderr=output)
        wait_for(train / "checkpoints" / "last", first)
        first.kill()
        first.wait()
        second = subprocess.run(
            command, env=environ, stdout=output, stderr=output, timeout=800, check=False
        )
    assert second.returncode == 0, log.read_text()[-4000:]
    events = read_events(tmp_path / "runs" / "loop" / "events.jsonl").events
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    ended = [(e["cycle"], e["payload"]["stage"]) for e in events if e["kind"] == "job_finished"]
    assert ended == [
        (0, "train"),
        (0, "eval_candidate_0"),
        (0, "harvest"),
        (1, "train"),
        (1, "adapt"),
        (1, "select_candidate"),
        (1, "select_adapted"),
        (1, "eval_candidate_0"),
        (1, "eval_baseline_0"),
    ]
    incidents = (tmp_path / "runs" / "loop" / "incidents.jsonl").read_text()
    assert "goes on at 0/train" in incidents
    assert_seeds_apart(tmp_path / "runs")


def assert_seeds_apart(workdir: Path) -> None:
    """Check that no episode that was trained on began where a test began."""
    cycles = workdir / "loop"
    harvest = json.loads((cycles / "cycle_0" / "harvest" / "result.json").read_text())
    harvested = {one["seed"] for one in harvest["episodes"]}
    tested: set[int] = set()
    with JobStore(workdir / "cadenza.db") as store:
        for job in store.jobs.of_run("loop"):
            assert job.status == "succeeded"
            assert job.attempt == 1
            if job.key.stage.startswith(("eval", "select")):
                seed = next(w for w in job.command if w.startswith("--seed="))
                start = int(seed.removeprefix("--seed="))
                tested |= set(range(start, start + 3))
    assert len(harvested) == 2
    assert len(tested) == 9  # cycle 0, and in cycle 1 those to select by and those to compare by
    assert not harvested & tested
