"""Whatever steps bring, in whatever order they fail: the promises of the state machine hold."""

from contextlib import nullcontext

import hypothesis.strategies as st
from hypothesis import given, settings

from cadenza.loop.config import LoopConfig
from cadenza.loop.contracts.records import (
    CheckpointRecord,
    DatasetRef,
    EpisodeOutcome,
    EvalReport,
    Proposal,
)
from cadenza.loop.orchestrator import machine
from cadenza.loop.orchestrator import machine as verdicts
from cadenza.loop.orchestrator.decision import Decision, Judgement
from cadenza.loop.orchestrator.evidence import Evidence
from cadenza.loop.orchestrator.machine import Measured
from cadenza.loop.state import LoopState

MAX_CYCLES = 3
GIVEN = CheckpointRecord(policy_type="bc", path="/given", cycle=-1, blessed=True)
RATES = st.integers(0, 4).map(lambda successes: successes / 4)


def config_of(data):
    gates = data.draw(st.sets(st.sampled_from(["promote", "escalate"])))
    return LoopConfig.from_document(
        {
            "run_name": "r",
            "seed_dataset": "local/d",
            "budgets": {"max_cycles": data.draw(st.integers(1, MAX_CYCLES))},
            "improve": {"enabled": True, "adapt_steps": data.draw(st.sampled_from([0, 5]))},
            "approval": {"gates": sorted(gates)},
        },
        source="test",
    )


class StateAlone:
    """A session without a store."""

    def __init__(self, reference=None):
        self.state = LoopState(run_id="run", blessed=reference)

    def step(self, name):
        return nullcontext()

    def commit(self, transition):
        self.state = transition.state


class Walk:
    """One run whose steps bring what hypothesis draws.

    `reference` is the model: path and measured success of the policy to beat, or None.
    """

    def __init__(self, data, session, config):
        self.data = data
        self.session = session
        self.config = config
        first = session.state.blessed
        self.reference = None if first is None else (first.path, None)
        self.blessed = None if first is None else first.path
        self.ends = 0

    @property
    def state(self):
        return self.session.state

    def checkpoint(self, stage):
        path = f"/c{self.state.cycle}/{stage}"
        return CheckpointRecord(policy_type="bc", path=path, cycle=self.state.cycle)

    def report(self, path, rate):
        first = 100 * self.state.current.look
        outcomes = tuple(
            EpisodeOutcome(task="t", seed=first + seed, success=seed < 4 * rate)
            for seed in range(4)
        )
        return EvalReport(
            checkpoint=path, env_type="e", task_suite="s", n_episodes=4, success_rate=rate,
            outcomes=outcomes,
        )  # fmt: skip

    def evidence(self):
        current = self.state.current
        baseline = current.baseline_report
        if baseline is None:
            return Evidence(candidate=current.candidate_report.success_rate, n_pairs=4, method="m")
        return Evidence(
            candidate=current.candidate_report.success_rate, baseline=baseline.success_rate,
            difference=0.0, n_pairs=4, method="m",
        )  # fmt: skip

    def possible_decisions(self):
        if self.state.reference is None:
            return [Decision.PROMOTE, Decision.PROVISIONAL]
        rest = [Decision.PROMOTE, Decision.ITERATE, Decision.ESCALATE, Decision.ROLLBACK]
        more = [] if self.state.current.look >= 2 else [None]
        return [*rest, *more, *([] if self.state.blessed else [Decision.PROVISIONAL])]

    def transition(self):
        state, config, draw = self.state, self.config, self.data.draw
        dataset = DatasetRef(repo_id="local/x", root=f"/d{state.cycle}/{state.step}")
        match state.step:
            case "propose":
                return machine.proposed(
                    state, config, Proposal(action="reuse_seed", dataset="local/d")
                )
            case "data":
                return machine.data_found(state, dataset)
            case "train":
                return machine.trained(state, config, self.checkpoint("train"))
            case "adapt":
                return machine.adapted(state, self.checkpoint("adapt"))
            case "select":
                values = (draw(RATES), draw(RATES))
                reports = [self.report("p", value) for value in values]
                return machine.selected(state, *reports, values)
            case "evaluate":
                candidate = self.report(state.current.candidate.path, draw(RATES))
                measured = None
                if state.reference is not None:
                    baseline = self.report(state.reference.path, draw(RATES))
                    measured = Measured(latest=baseline, total=baseline)
                return machine.evaluated(
                    state, Measured(latest=candidate, total=candidate), measured
                )
            case "decide":
                decision = draw(st.sampled_from(self.possible_decisions()))
                judgement = Judgement(decision, "r")
                return verdicts.judged(state, config, judgement, self.evidence())
            case "approve":
                return verdicts.answered(
                    state, config, self.evidence(), approved=draw(st.booleans()), by="b", reason="r"
                )
            case "learn":
                return machine.learned(state, config, improves=draw(st.booleans()))
            case "harvest":
                if draw(st.booleans()):
                    return machine.harvested(state, config, None, error="e")
                return machine.harvested(state, config, draw(st.sampled_from([None, dataset])))
            case "merge":
                if draw(st.booleans()):
                    return machine.merged(state, config, None, error="e")
                return machine.merged(state, config, dataset)

    def step(self):
        before = self.state
        name = f"{before.cycle}/{before.step}/{before.current.look}/{self.ends}"
        with self.session.step(name):
            end = None
            disturbed = self.ends < 3 and self.data.draw(st.sampled_from([False] * 9 + [True]))
            if disturbed and self.data.draw(st.booleans()):
                end = machine.failed(before, "e")
            elif disturbed:
                end = machine.out_of_budget(before, self.config, "max_gpu_hours")
            if end is None:
                self.session.commit(self.transition())
            else:
                self.ends += 1
                self.session.commit(end)
                self.session.commit(machine.restarted(self.state))
                assert self.state.model_copy(update={"restarts": before.restarts}) == before
        if len(self.state.decisions) > len(before.decisions):
            self.note(before, self.state.decisions[-1])

    def note(self, before, decision):
        """Say what the decision must have done, from its definition alone."""
        candidate = before.current.candidate.path
        rate = before.current.candidate_report.success_rate
        if decision in ("promote", "provisional"):
            self.reference = (candidate, rate)
        elif self.reference is not None:
            measured = before.current.baseline_report.success_rate
            self.reference = (self.reference[0], measured)
        if decision == "promote":
            self.blessed = candidate

    def check(self):
        state, reference = self.state, self.state.reference
        assert (None if state.blessed is None else state.blessed.path) == self.blessed
        assert state.blessed is None or state.provisional is None
        told = None if reference is None else (reference.path, state.baseline)
        assert told == self.reference
        assert len(state.decisions) in (state.cycle, state.cycle + 1)
        assert max(state.cycle, len(state.decisions)) <= self.config.budgets.max_cycles
        assert 0 <= state.rung < len(self.config.policy_ladder)
        assert (state.stop_reason is not None) == (state.step == "finished")

    def check_rows(self, store):
        blessed = [row["path"] for row in store.checkpoints_for("run") if row["blessed"]]
        assert blessed == ([] if self.blessed is None else [self.blessed])
        cycles = store.cycles_for("run")
        assert len(cycles) <= self.config.budgets.max_cycles
        decided = [row["decision"] for row in cycles if row["decision"] is not None]
        assert decided == list(self.state.decisions)
        seqs = [event.seq for event in store.events.find("run")]
        assert seqs == list(range(1, len(seqs) + 1))

    def to_the_end(self, check):
        for _ in range(300):
            if self.state.step == "finished":
                return
            self.step()
            check()
        raise AssertionError("the run does not end")


@given(data=st.data())
@settings(max_examples=100)
def test_promises_hold_whatever_the_steps_bring(data):
    walk = Walk(data, StateAlone(data.draw(st.sampled_from([None, GIVEN]))), config_of(data))
    walk.to_the_end(walk.check)
