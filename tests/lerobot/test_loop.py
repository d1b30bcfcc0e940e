"""The loop as people run it, over the real LeRobot: killed while it trains, and then to the merge.

Two cycles end, each with a promotion and a harvest; the third trains on what was merged and is
stopped. ACT on PushT near its goal, CPU, offline.
"""

import json
import signal
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from cadenza.loop.contracts.records import SeedRange
from cadenza.loop.processes import is_held
from cadenza.loop.scripts.train_policy import finished_step
from cadenza.loop.store.jobstore import JobStore
from cadenza.loop.store.rows import JobRow, Row
from tests.integration.loop.command_line_runs import LoopCommands, kill
from tests.integration.loop.job_harness import wait_for
from tests.lerobot.pusht_loop import EPISODES, HARVESTED, SAVE_STEPS, STEPS, TESTED, document
from tests.loop_fakes import logged

pytestmark = [
    pytest.mark.lerobot,
    pytest.mark.slow,
    pytest.mark.timeout(4000),
    pytest.mark.usefixtures("offline"),
]

#: Longest time until two cycles must have happened, s; a busy machine with a cold disk is slow.
LIMIT_S = 3500.0
#: Exit code of a controller that was stopped by SIGTERM.
STOPPED = 143
CYCLE = ["train", "adapt", "select_candidate", "select_adapted"]
COMPARISON = ["eval_candidate_0", "eval_baseline_0"]
#: Stages that end with a success, by cycle.
STAGES = {
    0: ["train", "eval_candidate_0", "harvest"],
    1: [*CYCLE, *COMPARISON, "harvest", "merge"],
    2: ["train", "adapt"],
}
#: What a dataset of rollouts holds.
RECORDED = ("action", "observation.environment_state", "observation.state")


@dataclass(frozen=True, kw_only=True)
class Left:
    """What a run left."""

    folder: Path
    killed_at: int | None
    incidents: set[str]
    events: list[dict[str, Any]]
    jobs: dict[tuple[int, str], JobRow]
    policies: list[Row]
    seeds: dict[tuple[int, str, int], SeedRange]

    def of(self, kind):
        """Return what the events of a kind say, in order."""
        return [{"cycle": e["cycle"], **e["payload"]} for e in self.events if e["kind"] == kind]

    def harvest(self, cycle):
        """Return what a harvest brought."""
        return json.loads((self.folder / f"cycle_{cycle}/harvest/result.json").read_text())


@pytest.fixture(scope="module")
def left(scripted, tmp_path_factory, offline):
    config = json.dumps(document(scripted / "demonstrations"))  # JSON is YAML
    run = LoopCommands(tmp_path_factory.mktemp("loop"), config, "loop")
    try:
        killed_at = kill_in_training(run)
        go_on_until_merged_data_were_trained_on(run)
        yield what_is_left(run, killed_at)
    finally:
        run.kill_all()


def kill_in_training(run):
    """Kill controller, host and training; return the step that the training came to."""
    train = run.run_folder / "cycle_0" / "train"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NEAR_GOAL_HOLDS_AT", "last")
        controller = run.start()
    wait_while_alive(controller, lambda: any(is_held(pid) for pid in run.commands()))
    assert (train / "checkpoints" / "last").exists()
    controller.process.kill()
    for pid in [*run.hosts(), *run.commands()]:
        kill(pid)
    wait_for(lambda: not run.commands())
    return finished_step(train)


def go_on_until_merged_data_were_trained_on(run):
    """Go on with the run, and stop it as soon as cycle 2 has its policies."""

    def started():
        found = logged(run.run_folder / "events.jsonl")
        return {(e["cycle"], e["payload"]["stage"]) for e in found if e["kind"] == "job_started"}

    controller = run.start()
    wait_while_alive(controller, lambda: (2, "select_candidate") in started())
    controller.process.send_signal(signal.SIGTERM)
    end = controller.outcome(200.0)
    assert end.code == STOPPED, end.err
    assert run.hosts() == []
    assert run.commands() == []


def wait_while_alive(controller, condition):
    wait_for(lambda: condition() or controller.process.poll() is not None, seconds=LIMIT_S)
    assert controller.process.poll() is None, controller.outcome(1.0)


def what_is_left(run, killed_at):
    with JobStore(run.folder / "runs" / "cadenza.db") as store:
        jobs = store.jobs.of_run(run.run_id)
        return Left(
            folder=run.run_folder,
            killed_at=killed_at,
            incidents=run.incidents(),
            events=logged(run.run_folder / "events.jsonl"),
            jobs={(job.key.cycle, job.key.stage): job for job in jobs},
            policies=store.checkpoints_for(run.run_id),
            seeds=store.seed_ranges(run.run_id),
        )


def info(root):
    return json.loads((root / "meta" / "info.json").read_text())


def frames(root):
    """Return the frames of a dataset in order, without LeRobot."""
    tables = [pq.read_table(file) for file in sorted((root / "data").rglob("*.parquet"))]
    columns = (*RECORDED, "episode_index", "frame_index")
    return {
        key: np.concatenate([np.array(table[key].to_pylist()) for table in tables])
        for key in columns
    }


def flag(job, name):
    """Return the text of a flag of a job's command."""
    return next(w for w in job.command if w.startswith(f"--{name}=")).partition("=")[2]


def test_training_that_was_killed_in_the_middle_goes_on(left):
    assert left.killed_at is not None
    assert SAVE_STEPS <= left.killed_at < STEPS
    log = (left.folder / "cycle_0" / "train.log").read_text()
    assert f"training continues at step {left.killed_at}" in log
    assert left.jobs[0, "train"].interruptions == 1
    assert {"resumed", "interrupted"} <= left.incidents


def test_cycles_train_test_harvest_and_merge(left):
    assert [event["seq"] for event in left.events] == list(range(1, len(left.events) + 1))
    wanted = [(cycle, stage) for cycle, stages in STAGES.items() for stage in stages]
    done = [
        (one["cycle"], one["stage"]) for one in left.of("job_finished") if one["exit_code"] == 0
    ]
    assert done == wanted
    assert all(left.jobs[key].status == "succeeded" for key in wanted)


def test_both_cycles_are_promoted_the_second_with_bounds_above_0(left):
    first, second = left.of("decision")
    assert (first["decision"], second["decision"]) == ("promote", "promote")
    assert first["baseline"] is None
    assert second["evidence"]["lower"] > 0.0
    assert second["evidence"]["n_pairs"] in (10, TESTED)  # the checks of a dozen pairs


def test_harvests_keep_successes_alone(left):
    attempts = []
    for told in left.of("rollouts_collected"):
        found = left.harvest(told["cycle"])
        assert all(one["kept"] == one["success"] for one in found["episodes"])
        assert found["kept"] == found["successes"] == HARVESTED == told["kept"]
        assert info(Path(found["root"]))["total_episodes"] == HARVESTED
        attempts.append(found["attempts"])
    assert len(attempts) == 2
    assert attempts[0] > HARVESTED  # the policy of cycle 0 fails from one side


def test_merge_holds_both_harvests_and_nothing_else(left):
    roots = [Path(left.harvest(cycle)["root"]) for cycle in (0, 1)]
    assert flag(left.jobs[1, "merge"], "roots") == ",".join(map(str, roots))
    (told,) = left.of("rollouts_merged")
    merged = left.folder / "cycle_1" / "merge" / "dataset"
    assert (told["cycle"], told["episodes"]) == (1, 2 * HARVESTED)
    facts, parts = info(merged), [info(root) for root in roots]
    assert facts["total_episodes"] == 2 * HARVESTED
    assert facts["total_frames"] == sum(part["total_frames"] for part in parts)
    assert facts["features"] == parts[0]["features"] == parts[1]["features"]
    assert set(RECORDED) < set(facts["features"])
    seen, sources = frames(merged), [frames(root) for root in roots]
    for key in (*RECORDED, "frame_index"):
        np.testing.assert_array_equal(seen[key], np.concatenate([part[key] for part in sources]))
    assert sorted(set(seen["episode_index"].tolist())) == list(range(2 * HARVESTED))


def test_next_cycle_trains_on_what_was_merged(left):
    merged = left.folder / "cycle_1" / "merge" / "dataset"
    adapt = left.jobs[2, "adapt"]
    assert flag(adapt, "mix.root") == str(merged)
    # What it trained on are the demonstrations with what was merged behind them.
    blend = frames(left.folder / "cycle_2" / "adapt_blend")
    mixed = blend["episode_index"] >= EPISODES
    for key in RECORDED:
        np.testing.assert_array_equal(blend[key][mixed], frames(merged)[key])
    config = left.folder / "cycle_2/adapt/checkpoints/last/pretrained_model/train_config.json"
    trained_on = json.loads(config.read_text())["dataset"]
    assert trained_on["root"] == str(left.folder / "cycle_2" / "adapt_blend")
    chosen = set(trained_on["episodes"])
    assert chosen & set(range(EPISODES))
    assert chosen & set(range(EPISODES, EPISODES + 2 * HARVESTED))


def test_no_episode_that_is_trained_on_began_where_a_test_begins(left):
    ranges = [(key, seeds) for key, seeds in left.seeds.items() if key[1] != "data"]
    assert len(ranges) == 6  # comparisons and harvests of two cycles, choices of two
    for (_, one), (_, other) in combinations(left.seeds.items(), 2):
        assert not one.overlaps(other)
    harvested = {
        one["seed"] for cycle in (0, 1) for one in left.harvest(cycle)["episodes"] if one["kept"]
    }
    assert len(harvested) == 2 * HARVESTED
    tested: set[int] = set()
    for (_, stage), job in left.jobs.items():
        if stage.startswith(("eval", "select")):
            start = int(flag(job, "seed"))
            tested |= set(range(start, start + TESTED))
    assert len(tested) == 4 * TESTED  # comparisons of two cycles, choices of two
    assert not harvested & tested
