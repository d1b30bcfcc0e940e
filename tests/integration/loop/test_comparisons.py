"""Comparisons of whole runs: what is played, remembered and told."""

import json

import pytest

from cadenza.core.errors import ConfigurationError
from cadenza.loop.config import LoopConfig
from cadenza.loop.status_report import run_status
from tests.integration.loop.loop_harness import Loop, store_in
from tests.loop_fakes import FakeStack

OF_SCORES = {
    "promote_delta": 0.05, "regression_delta": 0.05, "plateau_epsilon": 0.01,
    "escalate_floor": 0.0, "min_promote": 0.1,
}  # fmt: skip


@pytest.fixture
def workdir(tmp_path_factory):
    return tmp_path_factory.mktemp("work")


@pytest.fixture
def store(workdir, sqlite_template):
    with store_in(workdir, sqlite_template) as opened:
        yield opened


@pytest.fixture
def new(store, workdir):
    def build(stack, **changes):
        changes.setdefault("budgets", {"max_cycles": 2})
        return Loop(store, workdir, stack, **changes)

    return build


def decided(loop):
    """What is told of each decision."""
    events = loop.store.events.find(loop.run_id)
    return [json.loads(event.payload) for event in events if event.kind == "decision"]


def until(store, cycle, look, run_id="run"):
    """Options of a controller that stops before the job ``look`` of a comparison."""

    def stop():
        state = store.load_state(run_id)[0]
        return int((state.cycle, state.step, state.current.look) == (cycle, "evaluate", look))

    return {"stop": stop}


def played(loop, cycle):
    """Episodes of each job of the candidate."""
    return [
        int(flags["episodes"])
        for number, stage, _, flags in loop.stack.commands
        if number == cycle and stage.startswith("eval_candidate")
    ]


class Scores(FakeStack):
    """Scores by cycle of the policy, a function of the number of the episode."""

    key, kind = "score", float

    def __init__(self, *values):
        super().__init__([0.5] * len(values))
        self.values = values

    def _evaluate(self, cycle, stage, out, flags):
        result = super()._evaluate(cycle, stage, out, flags)
        of = int(flags["policy"].split("cycle_")[1].split("/")[0])
        for one in result["episodes"]:
            one[self.key] = self.kind(self.values[of](one["seed"] % 2**16))
        return result


class Solves(Scores):
    """The same of success."""

    key, kind = "success", bool


def of_scores(**changes):
    return {"eval": {"metric": "score", "score_range": [0.0, 1.0], **changes}} | {
        "thresholds": {"alpha": 0.05, **OF_SCORES}
    }


def test_what_is_decided_does_not_depend_on_the_size_of_jobs(new):
    reasons, numbers = set(), []
    for size in (7, 50, 200):
        name = f"jobs-of-{size}"
        loop = new(FakeStack([0.5, 0.7]), run_id=name, eval={"episodes_per_job": size})
        loop.run()
        told = decided(loop)[1]
        numbers.append(told["evidence"]["n_played"])
        reasons.add((told["decision"], told["evidence"]["n_pairs"], told["evidence"]["lower"]))
    assert len(reasons) == 1
    ((decision, used, _),) = reasons
    assert decision == "promote"
    assert used % 10 == 0
    assert numbers == [next(n for n in (*range(7, 200, 7), 200) if n >= used), 50, 200]
    assert (
        f"; {200 - used} further ones were played after the stop and are not used" in told["reason"]
    )
    assert len(loop.store.episodes(loop.run_id, 1, "candidate")) == 200


def test_a_small_gain_is_remembered_and_blessed_once_its_mean_counts(new):
    def even(n):
        return n % 2 == 0

    def slightly(n):
        return even(n) or n % 24 == 1

    # a win in 24 shows a gain by 160 pairs, of 0.04; from 260 on every second pair is one
    grows = Solves(even, lambda n: slightly(n) or n >= 260)
    late = {"n_episodes": 400, "max_episodes": 480, "episodes_per_job": 480}
    loop = new(grows, eval=late)
    assert loop.run().decisions == ["promote", "promote"]
    assert decided(loop)[1]["evidence"]["n_pairs"] == 270
    small = new(Solves(even, slightly), run_id="small", eval=late)
    assert small.run().decisions == ["promote", "iterate"]
    told = decided(small)[1]
    assert told["evidence"]["lower"] > 0.0
    assert "It is better, but by less than promote_delta 0.050, so it is not" in told["reason"]


def test_scores_outside_the_range_are_clipped_and_told(new):
    loop = new(Scores(lambda n: 0.5, lambda n: 9.0 if n % 10 == 3 else 0.8), **of_scores())
    assert loop.run().decisions == ["promote", "promote"]
    told = decided(loop)[1]
    pairs, mean = told["evidence"]["n_pairs"], told["evidence"]["candidate"]
    assert mean == pytest.approx(0.8 + 0.2 / 10)
    assert f"{pairs // 10} of {2 * pairs} scores clipped to eval.score_range" in told["reason"]


def test_wins_bless_what_scores_higher_more_often_and_say_that_they_say_no_more(new):
    # a hair better in 95 %, a disaster in 5 %: the mean is far worse
    rash = Scores(lambda n: 0.5, lambda n: -40.0 if n % 20 == 7 else 0.51)
    loop = new(rash, eval={"metric": "wins"})
    assert loop.run().decisions == ["promote", "promote"]
    reason = decided(loop)[1]["reason"]
    assert "it scores higher on " in reason
    assert "which says nothing of its mean score" in reason
    by_mean = new(rash, run_id="by-mean", **of_scores(score_range=[-40.0, 1.0]))
    assert by_mean.run().decisions[1] != "promote"


def test_reasons_and_status_tell_what_the_next_comparison_can_show(new, workdir):
    loop = new(FakeStack([0.5] * 4), budgets={"max_cycles": 4}, thresholds={"alpha": 0.05},
               eval={"max_episodes": 480})  # fmt: skip
    loop.run()
    first, *_, last = [told["reason"] for told in decided(loop)]
    assert first.endswith(
        "The next comparison has a level of 2.5 %: +10 points would be blessed in about 80 %."
    )
    assert "The next comparison has a level of 0.25 %: +10 points would be blessed in" in last
    status = run_status(loop.store, "run", workdir=workdir)
    assert not any("next comparison" in cycle.reason for cycle in status.cycles)
    assert status.error_failed == 3
    assert status.error_spent == pytest.approx(0.05 * (1 - 1 / 4))
    assert status.next_comparison in last
    weak = new(
        FakeStack([0.5, 0.5]), run_id="weak", eval={"max_episodes": 60}, thresholds={"alpha": 0.05}
    )
    weak.run()
    assert "Warning: it hardly detects a gain that counts" in decided(weak)[1]["reason"]


def test_another_most_counts_from_the_next_comparison_on(new, store):
    stack, cycles = FakeStack([0.5, 0.56, 0.5]), {"max_cycles": 3}
    loop = new(stack, budgets=cycles, options=until(store, 1, 1))
    loop.run()
    new(stack, budgets=cycles, eval={"max_episodes": 100}).run()
    assert [told["evidence"]["most"] for told in decided(loop)] == [200, 200, 100]


def test_a_controller_that_stops_before_every_job_decides_as_one_that_does_not(new, store):
    whole, stack = new(FakeStack([0.5, 0.56])), FakeStack([0.5, 0.56])
    summary = whole.run()
    for look in range(4):
        new(stack, run_id="again", options=until(store, 1, look, "again")).run()
    again = new(stack, run_id="again")
    assert again.run().decisions == summary.decisions
    assert len(played(again, 1)) == len(played(whole, 1)) > 1
    assert decided(again) == decided(whole)


@pytest.mark.parametrize(
    ("eval_", "thresholds", "message"),
    [
        ({"metric": "score"}, OF_SCORES, r"a mean without a range cannot be judged: one loss"),
        ({"score_range": [0.0, 1.0]}, {}, r"expected none with eval\.metric: success"),
        (
            {"metric": "wins", "score_range": [0.0, 1.0]},
            {},
            r"expected none with eval\.metric: wins",
        ),
        ({"metric": "score", "score_range": [1.0, 1.0]}, OF_SCORES, "with least < most and a fin"),
        (
            {"metric": "score", "score_range": [-1.7e308, 1.7e308]},
            OF_SCORES,
            "least < most and a finite width",
        ),
        (
            {"metric": "score", "score_range": [0.0, 0.05]},
            OF_SCORES,
            r"thresholds\.promote_delta: expected less than the width 0\.05",
        ),
        ({}, {"alpha": 0.21}, r"thresholds\.alpha: .* 0\.2"),
        ({}, {"alpha": 0.499}, r"thresholds\.alpha: .* 0\.2"),
        ({"metric": "score", "score_range": [0.0, float("nan")]}, OF_SCORES, "score_range"),
    ],
)
def test_ranges_and_levels_that_decide_nothing_right_are_refused(eval_, thresholds, message):
    document = {"run_name": "r", "seed_dataset": "local/d", "eval": eval_, "thresholds": thresholds}
    with pytest.raises(ConfigurationError, match=message):
        LoopConfig.from_document(document, source="test")
