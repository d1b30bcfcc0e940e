import json

import pytest

from cadenza.cli.loop_status import notes
from cadenza.loop.requests import stop_run
from cadenza.loop.status_report import run_status
from cadenza.loop.store.changes import add_checkpoint, record_episodes
from cadenza.loop.store.rows import ReplyRow
from tests.loop_runs import RUN, begun_run, event, outcomes


@pytest.fixture
def store(tmp_path):
    with begun_run(tmp_path, owner="someone") as opened:
        yield opened


def lease_of(store):
    return store.leases.acquire(RUN, "someone", ttl_s=60.0, gone=lambda _: True)


def test_a_compared_candidate_has_its_reference_and_the_bounds_of_the_decision(store, tmp_path):
    evidence = {"difference": 0.2, "lower": 0.05, "upper": None}
    decided = event("decide", "decision", 1, {"decision": "promote", "evidence": evidence}, 0)
    lease = lease_of(store)
    store.events.append(lease, [decided])
    store.apply(
        lease,
        record_episodes(1, "candidate", 0, outcomes(8, 10)),
        record_episodes(1, "candidate", 1, outcomes(10, 10)),
        record_episodes(1, "baseline", 0, outcomes(6, 10)),
    )
    first, second = run_status(store, RUN, workdir=tmp_path).cycles
    assert (first.baseline, first.difference) == (None, None)
    assert (second.candidate.rate, second.candidate.n_episodes) == (0.9, 20)
    assert second.baseline.rate == 0.6
    assert second.difference == (0.05, None)
    assert (second.decision, second.reason) == ("promote", None)


def test_a_cycle_shows_the_copy_of_its_policy_only_once_that_was_chosen(store, tmp_path):
    lease = lease_of(store)

    def shown():
        return run_status(store, RUN, workdir=tmp_path).cycles[1].checkpoint

    for name in ("plain", "adapted"):
        store.apply(lease, add_checkpoint(1, "bc", f"/{name}"))
    assert shown() == "/plain"
    for ordinal, (name, path) in enumerate((("candidate", "/plain"), ("adapted", "/adapted"))):
        told = event("eval", "candidate_selected", 1, {"chosen": name}, ordinal)
        store.events.append(lease, [told])
        assert shown() == path


def test_what_a_language_model_was_asked_is_told(store, tmp_path):
    assert run_status(store, RUN, workdir=tmp_path).language_model is None
    prices = {"usd_per_million_input": 1.0, "usd_per_million_output": 1.0}
    told = {}
    for run_id, calls in (("priced", {**prices, "max_cost_usd": 2.0}), ("unpriced", {})):
        store.create_run(run_id, json.dumps({"llm_calls": calls}))
        lease = store.leases.acquire(run_id, "someone", ttl_s=60.0)
        for ordinal, error in enumerate((None, None, "time-out")):
            reply = ReplyRow(
                provider="p", model="m", prompt_sha256="0" * 64, text="", cost_usd=0.25, error=error
            )
            store.replies.record(lease, 0, "propose", ordinal, reply)
        if run_id == "priced":
            error = {"error": "time-out"}
            plain = event("orchestrator", "proposal_fallback", 0, error, 0)
            curated = event("curation", "curation_fallback", 1, error, 1)
            store.events.append(lease, [plain, curated])
        status = run_status(store, run_id, workdir=tmp_path)
        told[run_id] = next(line for line in notes(status, tmp_path, None) if "model" in line)
    assert told == {
        "priced": "language model: 3 calls, 1 of them without a reply, 0.75 (at most 2) dollars, "
        "2 proposals by the schedule instead",
        "unpriced": "language model: 3 calls, 1 of them without a reply",
    }


def test_a_controller_that_takes_the_run_meanwhile_hears_the_request_to_stop(tmp_path, monkeypatch):
    with begun_run(tmp_path) as store:
        acquire = store.leases.acquire

        def too_late(*arguments, **options):
            acquire(RUN, "a controller", ttl_s=60.0, to_work=True)
            return acquire(*arguments, **options, gone=lambda _: False)

        monkeypatch.setattr(store.leases, "acquire", too_late)
        outcome = stop_run(store, RUN, workdir=tmp_path)
        assert outcome.controller == "a controller"
        assert store.stop_requested(RUN)
