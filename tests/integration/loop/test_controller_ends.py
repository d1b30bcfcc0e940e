"""How a run ends, waits and goes on: budgets, gates, stops, failures, other controllers."""

import json
import threading

import pytest

from cadenza.core.errors import ConfigurationError
from cadenza.loop.constitution import Constitution, load_constitution
from cadenza.loop.errors import StaleLeaseError, TrainError
from cadenza.loop.jobs.terms import StopLevel
from cadenza.loop.reports import compare_runs
from cadenza.loop.requests import stop_run
from tests.integration.loop.job_harness import wait_for
from tests.integration.loop.loop_harness import outcome_of
from tests.integration.loop.test_controller import new, payloads, store, workdir
from tests.loop_fakes import FakeProposer, FakeStack

__all__ = ["new", "store", "workdir"]  # fixtures

HOUR_S = 3600.0


class Interruption(FakeProposer):
    """Does something at the beginning of the second cycle, the first time."""

    def __init__(self, action):
        super().__init__()
        self.action = action

    def propose(self, cycle, last_report):
        if cycle == 1 and self.action is not None:
            action, self.action = self.action, None
            action()
        return super().propose(cycle, last_report)


def statuses(loop):
    row = loop.store.get_run(loop.run_id)
    return row["status"], row["stop_reason"]


def incidents(loop):
    return [incident["kind"] for incident in _incidents(loop)]


def stop_reasons(loop):
    return [told["message"] for told in _incidents(loop) if told["kind"] == "stopped"]


def _incidents(loop):
    path = loop.folder / "incidents.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_run_out_of_budget_goes_on_only_when_there_is_more(new, workdir):
    stack = FakeStack([0.5, 0.9], seconds=0.5 * HOUR_S)
    budget = {"max_cycles": 2, "max_gpu_hours": 1.6}
    first = new(0.5, 0.9, stack=stack, budgets=budget)
    ended = first.run()
    before = outcome_of(first, workdir)
    assert first.run() == ended
    assert outcome_of(first, workdir) == before
    richer = new(0.5, 0.9, stack=stack, budgets={**budget, "max_gpu_hours": 9.0})
    summary = richer.run()
    assert (summary.stop_reason, summary.decisions) == ("budget: max_cycles", ["promote"] * 2)
    assert richer.events().count(("orchestrator", "run_finished")) == 2
    assert statuses(richer) == ("finished", "budget: max_cycles")


def answer_later(loop, status, *, cycle=0, gate="promote"):
    """Answer from another thread as soon as the question is there."""

    def is_asked():
        pending = loop.store.approvals.pending("run")
        asked = any((row.cycle, row.gate) == (cycle, gate) for row in pending)
        return asked and statuses(loop)[0] == "pending_approval"

    def answer():
        wait_for(is_asked)
        loop.store.approvals.decide("run", cycle, gate, status, reason="seen", by="eve")

    thread = threading.Thread(target=answer)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("status", "decision", "blessed"), [("approved", "promote", 1), ("rejected", "iterate", 0)]
)
def test_promotion_waits_for_a_person(new, status, decision, blessed):
    loop = new(0.5, approval={"gates": ["promote"]}, pages=True)
    thread = answer_later(loop, status)
    summary = loop.run()
    thread.join()
    assert summary.decisions == [decision]
    assert sum(row["blessed"] for row in loop.store.checkpoints_for("run")) == blessed
    decided = payloads(loop, "approval_decided")[0]
    assert (decided["approved"], decided["by"]) == (status == "approved", "eve")
    assert "seen" in payloads(loop, "decision")[0]["reason"]
    assert (loop.state().baseline is not None) == bool(blessed)
    told = decision if blessed else "iterate (promote refused by eve)"  # no result of statistics
    assert f"run/0: {told} 0.520" in next(loop.folder.parent.glob("pages/*.md")).read_text()
    loop.store.create_run("other", "{}")
    [compared, _] = compare_runs(loop.store, ["run", "other"], workdir=loop.folder.parent)
    assert compared.decisions == (told,)


def test_answer_at_the_last_moment_holds_against_the_timeout(new, monkeypatch):
    gates = {"gates": ["promote"], "timeout_s": 0.05, "on_timeout": "reject"}
    loop = new(0.5, approval=gates)
    approvals = loop.store.approvals
    decide = approvals.decide

    def overtaken(*arguments, **options):
        decide("run", 0, "promote", "approved", reason="just in time", by="eve")
        return decide(*arguments, **options)

    monkeypatch.setattr(approvals, "decide", overtaken)
    assert loop.run().decisions == ["promote"]
    assert payloads(loop, "approval_decided")[0]["by"] == "eve"


def test_waiting_run_can_be_stopped_and_waits_on_when_resumed(new, monkeypatch):
    loop = new(0.5, approval={"gates": ["promote"]})
    get, waits = loop.store.approvals.get, threading.Event()

    def looked(*arguments):
        row = get(*arguments)
        waits.set()
        return row

    monkeypatch.setattr(loop.store.approvals, "get", looked)

    def stop():
        waits.wait(120.0)
        stop_run(loop.store, "run", workdir=loop.folder.parent, reason="a demo", by="Bob")

    thread = threading.Thread(target=stop)
    thread.start()
    assert loop.run().stop_reason == "Bob asked for it: a demo"
    thread.join()
    assert statuses(loop) == ("stopped", "Bob asked for it: a demo")
    assert stop_reasons(loop) == [
        "run 'run': asked to stop while it waits; Bob asked for it: a demo."
    ]
    thread = answer_later(loop, "approved")
    assert loop.run().decisions == ["promote"]
    thread.join()


def test_signal_stops_between_steps_and_leaves_only_an_incident(new):
    level = [StopLevel.NONE]
    loop = new(
        0.5, 0.9, options={"stop": lambda: level[0]},
        proposer=Interruption(lambda: level.__setitem__(0, StopLevel.END)),
    )  # fmt: skip
    summary = loop.run()
    assert (summary.stop_reason, summary.decisions) == ("stop requested", ["promote"])
    assert loop.stack.stages(1) == []
    assert incidents(loop) == ["stopped"]
    assert stop_reasons(loop) == [
        "run 'run': asked to stop; a signal to the controller asked for it (Ctrl-C, SIGTERM, or "
        "its terminal was closed)."
    ]
    level[0] = StopLevel.NONE
    assert loop.run().stop_reason == "budget: max_cycles"
    assert incidents(loop) == ["stopped", "resumed"]


def test_failed_run_is_told_raised_and_goes_on_when_the_cause_is_mended(new):
    stack = FakeStack([0.5, 0.9], failing=[(1, "train")])
    loop = new(0.5, 0.9, stack=stack)
    with pytest.raises(TrainError, match="exit code 1"):
        loop.run()
    status, reason = statuses(loop)
    assert status == "failed"
    log = loop.folder / "cycle_1" / "train.log"
    assert reason == (
        "TrainError: job run/1/train: expected an end with exit code 0, got exit code 1; see its "
        f"log {log}; fix the cause and resume the run."
    )
    assert payloads(loop, "run_failed") == [{"error": reason}]
    assert loop.events()[-2:] == [("train", "job_finished"), ("orchestrator", "run_failed")]
    assert payloads(loop, "job_finished")[-1]["exit_code"] == 1
    stack.failing.clear()
    summary = loop.run()
    assert summary.decisions == ["promote", "promote"]
    assert statuses(loop) == ("finished", "budget: max_cycles")
    assert stack.stages(1)[:3] == ["data", "train", "train"]
    started = [p["stage"] for p in payloads(loop, "job_started")]
    assert started.count("train") == 3
    seqs = [event.seq for event in loop.store.events.find("run")]
    assert seqs == list(range(1, len(seqs) + 1))


def test_controller_that_was_replaced_changes_nothing_more(new):
    def take_over():
        lease = loop.controller.lease
        loop.store.leases.release(lease)
        loop.store.leases.acquire("run", "successor", ttl_s=60.0)

    loop = new(0.5, 0.9, proposer=Interruption(take_over))
    with pytest.raises(StaleLeaseError, match="this controller was replaced"):
        loop.run()
    assert statuses(loop) == ("running", None)
    assert len(loop.store.cycles_for("run")) == 1
    assert loop.store.leases.holder("run") == "successor"


def test_finished_run_goes_on_with_more_cycles_in_the_same_error_budget(new, workdir):
    stack = FakeStack([0.5, 0.5, 0.5, 0.95, 0.5])
    new(stack=stack, budgets={"max_cycles": 2}).run()
    longer = new(stack=stack, budgets={"max_cycles": 5})
    summary = longer.run()
    assert summary.decisions == ["promote", "iterate", "escalate", "promote", "rollback"]
    assert summary.stop_reason == "budget: max_cycles"
    # each comparison but the promotion costs 0.2 / ((k + 1) (k + 2)) after k others: 1/2, 1/6, 1/12
    assert (longer.state().spent, longer.state().failed) == (pytest.approx(0.15), 3)
    (told,) = payloads(longer, "run_extended")
    assert told == {"max_cycles": 5, "alpha": 0.2, "spent": pytest.approx(0.1)}
    left = outcome_of(longer, workdir)
    assert new(stack=stack, budgets={"max_cycles": 5}).run() == summary
    assert outcome_of(longer, workdir) == left


def test_run_is_not_resumed_with_another_configuration(new):
    new(0.5, 0.9, budgets={"max_cycles": 2}).run()
    other = new(0.5, 0.9, budgets={"max_cycles": 2}, train={"steps": 11})
    with pytest.raises(ConfigurationError, match=r"got other values for train\.steps"):
        other.run()
    fine = {"budgets": {"max_cycles": 2, "max_gpu_hours": 1.0}, "jobs": {"max_attempts": 1}}
    new(0.5, 0.9, **fine, approval={"gates": ["promote"]}).run()


def test_run_is_not_resumed_under_other_rules(new):
    new(0.5).run()
    content = load_constitution(None).rules.model_dump(mode="json")
    rules = Constitution({**content, "max_train_steps": 11})
    with pytest.raises(ConfigurationError, match=r"with SHA-256 .* name it under constitution"):
        new(0.5, rules=rules).run()
    new(0.5, constitution="elsewhere.yaml").run()  # the same rules at another place
