"""What a run does with policies of known quality: decisions, harvests, seeds, order of steps."""

import json
from pathlib import Path

import pytest

from cadenza.core.errors import IntegrityError
from cadenza.core.files import sha256_file
from cadenza.loop.constitution import ConstitutionError, load_constitution
from cadenza.loop.errors import EvalError
from cadenza.loop.status_report import Harvested, run_status
from tests.integration.loop.loop_harness import Loop, store_in
from tests.loop_fakes import FakeProposer, FakeStack

IMPROVE = {"enabled": True, "episodes": 4, "adapt_steps": 5}
OF_SCORES = {
    "promote_delta": 2.0,
    "regression_delta": 2.0,
    "plateau_epsilon": 1.0,
    "escalate_floor": -100.0,
    "min_promote": -25.0,
}


@pytest.fixture
def workdir(tmp_path_factory):
    return tmp_path_factory.mktemp("work")


@pytest.fixture
def store(workdir, sqlite_template):
    with store_in(workdir, sqlite_template) as opened:
        yield opened


@pytest.fixture
def new(store, workdir):
    """Call it with the rates of the cycles' policies; returns a run of as many cycles."""

    def build(*rates, **changes):
        stack = changes.pop("stack", None) or FakeStack(rates)
        changes.setdefault("budgets", {"max_cycles": len(rates)})
        return Loop(store, workdir, stack, **changes)

    return build


def payloads(loop, kind):
    events = loop.store.events.find(loop.run_id)
    return [json.loads(event.payload) for event in events if event.kind == kind]


@pytest.mark.parametrize(
    ("rates", "decisions"),
    [
        ((0.50, 0.505, 0.502), ["promote", "iterate", "escalate"]),
        ((0.80, 0.30), ["promote", "rollback"]),
        ((0.0, 0.0, 0.6), ["provisional", "iterate", "promote"]),
    ],
)
def test_decisions_follow_the_quality_of_the_candidates(new, rates, decisions):
    loop = new(*rates)
    summary = loop.run()
    assert summary.decisions == decisions
    assert [row["decision"] for row in loop.store.cycles_for("run")] == decisions
    assert [event["decision"] for event in payloads(loop, "decision")] == decisions
    assert (summary.cycles_run, summary.stop_reason) == (len(rates), "budget: max_cycles")


@pytest.fixture
def weights(workdir):
    """Call it with a rate; returns the path of a policy of this quality, made elsewhere."""

    def make(rate, name="earlier.json"):
        path = workdir / name
        path.write_text(json.dumps({"rate": rate}))
        return str(path)

    return make


@pytest.mark.parametrize("key", ["init", "reference"])
def test_run_never_blesses_a_policy_worse_than_the_one_it_started_from(new, weights, key):
    given = weights(0.95)
    first = {"name": "bc", "init": given} if key == "init" else {"name": "bc"}
    changes = {} if key == "init" else {"reference": given}
    loop = new(0.25, 0.9, policy_ladder=[first], eval={"n_episodes": 20, "max_episodes": 20},
               **changes)  # fmt: skip
    summary = loop.run()
    assert "promote" not in summary.decisions
    assert (summary.blessed_checkpoint, summary.blessed_cycle) == (given, None)
    assert summary.baseline_success_rate == pytest.approx(0.95, abs=0.06)
    assert loop.stack.flags(0, "eval_baseline_0")["policy"] == given
    blessed = loop.store.blessed_checkpoint("run")
    assert (blessed["path"], blessed["sha256"]) == (given, sha256_file(Path(given)))


def test_best_of_all_policies_that_rungs_start_from_is_the_first_reference(new, weights):
    weak, strong = weights(0.7, "weak.json"), weights(0.94, "strong.json")
    ladder = [
        {"name": "bc", "init": weak},
        {"name": "bc", "init": "owner/of-a-hub"},
        {"name": "bc_large", "init": strong},
    ]
    loop = new(0.8, 0.8, 0.8, policy_ladder=ladder, backend="native")
    loop.stack.failing = {(0, "reference_1")}
    with pytest.raises(EvalError):
        loop.run()
    loop.stack.failing = set()
    summary = loop.run()
    assert loop.stack.stages(0)[:3] == ["reference_0", "reference_1", "reference_1"]
    assert {loop.stack.flags(0, f"reference_{n}")["episodes"] for n in (0, 1)} == {"50"}
    [told] = payloads(loop, "reference_chosen")
    assert told["chosen"] == strong
    assert told["played"] == {
        weak: pytest.approx(0.7, abs=0.06),
        strong: pytest.approx(0.94, abs=0.06),
    }
    assert loop.stack.flags(0, "eval_baseline_0")["policy"] == strong
    assert "promote" not in summary.decisions
    assert (summary.blessed_checkpoint, summary.final_policy) == (strong, "bc_large")
    assert loop.store.blessed_checkpoint("run")["path"] == strong


def test_plateau_climbs_the_ladder_and_its_end_ends_the_run(new):
    loop = new(0.5, 0.5, 0.5, 0.5, 0.5, 0.5)
    summary = loop.run()
    assert summary.decisions == ["promote", "iterate", "escalate", "iterate", "escalate"]
    assert summary.stop_reason == "policy ladder exhausted"
    assert payloads(loop, "policy_escalated") == [{"to": "bc_large"}]
    assert [row["rung"] for row in loop.store.cycles_for("run")] == ["bc"] * 3 + ["bc_large"] * 2
    assert (summary.final_policy, summary.final_rung) == ("bc", "bc_large")


def test_undecided_comparison_takes_fresh_episodes_until_it_is_decided(new):
    loop = new(0.5, 0.56)
    loop.run()
    looks = [stage for stage in loop.stack.stages(1) if stage.startswith("eval_candidate")]
    assert looks == ["eval_candidate_0", "eval_candidate_1"]
    assert len(payloads(loop, "undecided")) == len(looks) - 1
    report = loop.state().last_report
    assert (report.n_episodes, report.raw) == (100, {"kind": "fake"})
    outcomes = loop.store.episodes("run", 1, "candidate")
    assert report.success_rate == sum(o.success for o in outcomes) / 100
    assert set(report.per_task) == {"easy", "hard"}
    assert payloads(loop, "decision")[1]["evidence"]["n_pairs"] == 100


class ScoredStack(FakeStack):
    """Scores around the policy's rate times 100 - 100, a little different on every seed."""

    def _evaluate(self, cycle, stage, out, flags):
        result = super()._evaluate(cycle, stage, out, flags)
        for one in result["episodes"]:
            mean = 100.0 * one["score"] - 100.0
            noise = one["seed"] * (5 + round(-mean)) % 13 / 2.0 - 3.0
            one |= {"success": False, "score": mean + noise}
        return result


@pytest.mark.parametrize(
    ("rates", "decisions"),
    [
        ((0.60, 0.70, 0.95), ["provisional", "provisional", "promote"]),
        ((0.80, 0.60), ["promote", "rollback"]),
    ],
)
def test_score_decides_where_success_cannot(new, rates, decisions):
    loop = new(
        stack=ScoredStack(rates),
        eval={"metric": "score", "score_range": [-50.0, 10.0]},
        thresholds=OF_SCORES,
        budgets={"max_cycles": len(rates)},
    )
    assert loop.run().decisions == decisions
    first = payloads(loop, "decision")[0]["evidence"]
    assert first["candidate"] == pytest.approx(100.0 * rates[0] - 100.0, abs=1.0)
    assert first["candidate_lower"] < first["candidate"] < first["candidate_upper"]


def test_first_candidate_plays_on_until_its_success_is_shown(new):
    loop = new(0.12, eval={"n_episodes": 10, "max_episodes": 100})
    assert loop.run().decisions == ["promote"]
    looks = [stage for stage in loop.stack.stages(0) if stage.startswith("eval_")]
    assert looks == [f"eval_candidate_{look}" for look in range(len(looks))]
    assert len(looks) > 1
    assert "Further episodes may show whether" in payloads(loop, "undecided")[0]["reason"]
    decided = payloads(loop, "decision")[0]["evidence"]
    assert decided["candidate_lower"] >= 0.05
    assert decided["n_pairs"] == len(loop.store.episodes("run", 0, "candidate"))


def test_candidate_and_reference_play_the_same_seeds_and_no_seed_serves_twice(new):
    loop = new(0.5, 0.55, 0.8, improve=IMPROVE)
    loop.run()
    for cycle in (1, 2):
        played = {
            subject: [(o.task, o.seed) for o in loop.store.episodes("run", cycle, subject)]
            for subject in ("candidate", "baseline")
        }
        assert played["candidate"] == played["baseline"]
    ranges = list(loop.store.seed_ranges("run").items())
    assert {purpose for (_, purpose, _), _ in ranges} == {"data", "harvest", "select", "compare"}
    for index, (_, one) in enumerate(ranges):
        assert not any(one.overlaps(other) for _, other in ranges[index + 1 :])


def test_training_goes_on_from_the_blessed_policy_of_the_same_type(new):
    loop = new(0.5, 0.9, 0.9)
    loop.run()
    inits = [loop.stack.flags(cycle, "train").get("init") for cycle in range(3)]
    weights = [row["path"] for row in loop.store.checkpoints_for("run")]
    assert inits == [None, weights[0], weights[1]]


def test_harvest_follows_promotion_and_feeds_the_next_adaptation(new):
    loop = new(0.5, 0.5, improve=IMPROVE)
    loop.run()
    assert "harvest" in loop.stack.stages(0)
    assert "harvest" not in loop.stack.stages(1)
    flags = loop.stack.flags(1, "adapt")
    assert flags["mix"] == str(loop.folder / "cycle_0" / "harvest")
    assert flags["init"] == str(loop.folder / "cycle_1" / "train" / "policy.json")
    assert flags["dataset"] == str(loop.folder / "cycle_1" / "data")
    assert (flags["steps"], float(flags["mix-ratio"])) == ("5", 0.5)
    assert "episodes" not in flags


def test_failed_starts_of_the_policy_that_the_run_stands_on_are_harvested_in_every_cycle(new):
    loop = new(0.5, 0.5, 0.9, improve={**IMPROVE, "starts": "failed"})
    assert loop.run().decisions == ["promote", "iterate", "promote"]
    own = [str(loop.folder / f"cycle_{cycle}/train/policy.json") for cycle in (0, 0, 2)]
    assert [loop.stack.flags(cycle, "harvest")["policy"] for cycle in range(3)] == own
    assert loop.stack.flags(0, "harvest")["starts"] == "failed"
    assert loop.stack.flags(2, "adapt")["mix"] == str(loop.folder / "cycle_1" / "merge")
    cycle = run_status(loop.store, "run", workdir=loop.folder.parent).cycles[1]
    assert cycle.harvest == Harvested(starts="failed", kept=4, successes=4, attempts=8)
    assert cycle.adapted == pytest.approx((0.5, 0.5), abs=0.05)


class Mover(FakeProposer):
    """Moves everything, ever farther."""

    def propose(self, cycle, last_report):
        moved = {"learning_rate": 10.0**-cycle, "steps": 7 * 10 ** (3 * cycle), "batch_size": 64}
        rung = ("bc", "bc_large", "smolvla")[cycle]
        return super().propose(cycle, last_report).model_copy(update={**moved, "rung": rung})


def test_proposals_move_training_and_rung_within_the_bounds_of_the_rules(new):
    loop = new(0.5, 0.9, 0.5, proposer=Mover(), improve=IMPROVE)
    loop.run()
    trained = [loop.stack.flags(cycle, "train") for cycle in range(3)]
    assert [flags["learning-rate"] for flags in trained] == ["0.01", "0.01", "0.01"]
    assert [flags["steps"] for flags in trained] == ["100", "7000", "20000"]
    assert [flags["batch-size"] for flags in trained] == ["64"] * 3
    assert [flags["rung"] for flags in trained] == ["bc", "bc_large", "bc_large"]
    assert [row["rung"] for row in loop.store.cycles_for("run")] == ["bc", "bc_large", "bc_large"]
    assert payloads(loop, "rung_proposed") == [{"to": "bc_large"}]
    assert "init" not in trained[1]  # the blessed policy is of another type
    assert loop.stack.flags(1, "adapt")["steps"] == "5"


@pytest.mark.parametrize(
    ("adapted", "chosen"), [(0.8, "adapted"), (0.2, "candidate"), (0.5, "candidate")]
)
def test_better_of_candidate_and_adapted_copy_goes_on(new, adapted, chosen):
    stack = FakeStack([0.5, 0.5])
    stack.rates[1, "adapt"] = adapted
    loop = new(0.5, 0.5, stack=stack, improve=IMPROVE)
    loop.run()
    assert [event["chosen"] for event in payloads(loop, "candidate_selected")] == [chosen]
    stage = "adapt" if chosen == "adapted" else "train"
    weights = str(loop.folder / "cycle_1" / stage / "policy.json")
    assert loop.stack.flags(1, "eval_candidate_0")["policy"] == weights


def test_nothing_is_harvested_at_success_0(new):
    loop = new(0.0, thresholds={"min_promote": 0.0}, improve=IMPROVE)
    assert loop.run().decisions == ["promote"]
    assert "harvest" not in loop.stack.stages(0)


def test_failed_harvest_does_not_stop_the_run(new):
    stack = FakeStack([0.5, 0.9], failing=[(0, "harvest")])
    loop = new(0.5, 0.9, stack=stack, improve=IMPROVE)
    summary = loop.run()
    assert summary.decisions == ["promote", "promote"]
    assert "exit code 1" in payloads(loop, "improve_failed")[0]["error"]
    assert "adapt" not in stack.stages(1)
    assert loop.state().mix.root == str(loop.folder / "cycle_1" / "harvest")


def test_failed_merge_keeps_the_harvest_and_the_next_cycle_merges_it(new):
    stack = FakeStack([0.3, 0.6, 0.6], failing=[(1, "merge")])
    loop = new(0.3, 0.6, 0.6, stack=stack, improve={**IMPROVE, "adapt_steps": 0})
    summary = loop.run()
    assert summary.decisions == ["promote", "promote", "iterate"]
    assert len(payloads(loop, "improve_failed")) == 1
    sources = stack.flags(2, "merge")["sources"].split(",")
    assert sources == [str(loop.folder / f"cycle_{cycle}" / "harvest") for cycle in (0, 1)]
    state = loop.state()
    assert (state.mix.num_episodes, state.unmerged) == (8, ())


def test_harvest_that_kept_nothing_leaves_the_mix(new):
    stack = FakeStack([0.3, 0.6, 0.9], kept={1: 0})
    loop = new(0.3, 0.6, 0.9, stack=stack, improve=IMPROVE)
    loop.run()
    collected = payloads(loop, "rollouts_collected")
    assert [event["kept"] for event in collected] == [4, 0, 4]
    assert loop.state().mix.root == str(loop.folder / "cycle_2" / "merge")
    assert "merge" not in stack.stages(1)


def test_refused_command_ends_the_run_and_is_told(new):
    loop = new(0.5, eval={"env_type": "crossing", "n_episodes": 600, "max_episodes": 600})
    with pytest.raises(ConstitutionError, match="max_eval_episodes"):
        loop.run()
    assert payloads(loop, "constitution_denied")[0]["rule"] == "max_eval_episodes"
    assert loop.events()[-1] == ("orchestrator", "run_failed")
    assert loop.store.get_run("run")["status"] == "failed"
    assert "eval_candidate_0" not in loop.stack.stages(0)


def test_changed_weights_are_never_used_again(new):
    class Saboteur(FakeProposer):
        def propose(self, cycle, last_report):
            if cycle == 1:
                path = loop.folder / "cycle_0" / "train" / "policy.json"
                path.write_text(path.read_text().replace("0.5", "1.0"))
            return super().propose(cycle, last_report)

    loop = new(0.5, 0.5, proposer=Saboteur())
    with pytest.raises(IntegrityError, match="expected the weights of cycle 0"):
        loop.run()
    assert loop.stack.stages(1) == ["data"]


def test_run_keeps_configuration_rules_and_capabilities(new):
    loop = new(0.5)
    loop.run()
    row = loop.store.get_run("run")
    assert json.loads(row["config_json"])["run_name"] == "test"
    assert row["constitution_sha256"] == load_constitution(None).sha256
    assert json.loads(row["capabilities_json"]) == {"version": "1"}
    assert (row["status"], row["lease_owner"]) == ("finished", None)
