import json

import pytest

from cadenza.core.errors import ConfigurationError
from cadenza.loop.config import DataConfig
from cadenza.loop.contracts.records import EvalReport
from cadenza.loop.events import EventBus
from cadenza.loop.orchestrator.proposer import CuratedProposer, DeterministicProposer, LLMProposer
from tests.loop_fakes import ScriptedLLM, logged

SEED = "local/seed"


def report(per_task=None, **more):
    return EvalReport(
        checkpoint="c", env_type="e", task_suite="s", n_episodes=10, success_rate=0.5,
        per_task=per_task or {}, **more,
    )  # fmt: skip


def plan(**changes):
    return {"action": "reuse_seed", "dataset": SEED, "num_episodes": 7, "notes": "n"} | changes


def schedule(**more):
    return DeterministicProposer(SEED, **({"initial_episodes": 10, "max_episodes": 50} | more))


def test_schedule_grows_up_to_the_cap():
    counts = [schedule().propose(cycle, None).num_episodes for cycle in (0, 1, 2, 3, 4095)]
    assert counts == [10, 20, 40, 50, 50]
    assert schedule(growth=1.5).propose(2, None).num_episodes == 22  # 10 * 1.5^2 = 22.5
    assert schedule(max_episodes=None).propose(4095, None).num_episodes == 1_000_000
    assert DeterministicProposer(SEED).propose(3, None).num_episodes is None
    assert DeterministicProposer(SEED, max_episodes=9).propose(3, None).num_episodes == 9
    proposal = schedule().propose(0, report())
    assert (proposal.action, proposal.notes, proposal.focus) == ("reuse_seed", "", ())


def test_failing_tasks_are_named_in_order_and_focused_worst_first():
    rates = {"g": 0.5, "f": 0.4, "e": 0.1, "d": 0.3, "c": 0.1, "b": 0.2, "a": 0.45, "ok": 0.9}
    proposal = schedule().propose(0, report(rates))
    assert proposal.action == "recollect_failing"
    assert proposal.notes == "focus tasks: ['a', 'b', 'c', 'd', 'e']"
    assert proposal.focus == ("c", "e", "b", "d", "f")


def test_schedule_out_of_range_is_refused():
    for changes in ({"initial_episodes": 0}, {"max_episodes": -1}, {"growth": 0.5},
                    {"growth": float("nan")}, {"failing_threshold": 1.5}):  # fmt: skip
        with pytest.raises(ConfigurationError, match=f"{next(iter(changes))}: expected"):
            schedule(**changes)


def llm_proposer(tmp_path, *replies, **more):
    llm = ScriptedLLM(*replies, "")
    return LLMProposer(llm, tmp_path / "pages", schedule(), **more), llm


BAD = [
    "I would rather not.", "}{", "[]", plan(action="delete"), plan(num_episodes=-5),
    plan(num_episodes=True), plan(num_episodes=2.5), plan(notes=7),
    '{"action": "reuse_seed", "num_episodes": NaN}', '{"a":' * 50_000 + "}",
    '{"action": "reuse_seed", "num_episodes": ' + "9" * 5000 + "}", "{" + " " * 300_000 + "}",
]  # fmt: skip


@pytest.mark.parametrize("reply", BAD)
def test_bad_reply_gets_one_repair_turn_and_then_the_schedule(tmp_path, reply):
    for second, episodes in ((plan(num_episodes=3), 3), (reply, 20)):
        proposer, llm = llm_proposer(tmp_path, reply, second, plan(num_episodes=4))
        assert proposer.propose(1, None).num_episodes == episodes
        assert len(llm.prompts) == 2
        assert "what is wrong with it" in llm.prompts[1]


AROUND = [
    "{}",
    "I weigh {success} against {cost}, i.e. {a: 1}. {} So it is.",
    "<think>{draft}, or {'action': 'reuse_seed'}</think>\n```json\n{}\n```\nas {asked}.",
    "By [1] and {[2]} I take {} [done] {",
]


@pytest.mark.parametrize("around", AROUND)
def test_reply_is_read_whatever_stands_around_its_json(tmp_path, around):
    def said(value, draft):
        text = around.replace("{draft}", json.dumps(draft))
        return text.replace("{}", json.dumps(value))

    proposer, llm = llm_proposer(tmp_path, said(plan(num_episodes=3), plan(num_episodes=9)))
    assert proposer.propose(1, None).num_episodes == 3
    assert len(llm.prompts) == 1
    scores = [{"index": 0, "score": 3}, {"index": 1, "score": 9}]
    proposer, llm = curated(
        tmp_path,
        said({"plans": counts(5, 6)}, counts(1)),
        said(scores, [{"index": 0, "score": 10}]),
        said(plan(num_episodes=8), plan(num_episodes=2)),
    )
    assert proposer.propose(2, None).num_episodes == 8
    assert len(llm.prompts) == 3
    assert '"num_episodes": 6' in llm.prompts[2]


@pytest.mark.parametrize("reply", ["", RuntimeError("network"), OSError("reset")])
def test_no_reply_falls_back(tmp_path, reply):
    proposer, llm = llm_proposer(tmp_path, reply)
    assert proposer.propose(1, report({"a": 0.1})) == schedule().propose(1, report({"a": 0.1}))
    assert len(llm.prompts) == 1


def test_focus_names_tasks_of_the_report_only(tmp_path):
    rates = {"a": 0.9, "b": 0.1, "c": 0.2}
    wanted = plan(action="recollect_failing", focus=["rm -rf", "a", "c", "a", "B"])
    proposer, _ = llm_proposer(tmp_path, wanted)
    assert proposer.propose(0, report(rates)).focus == ("a", "c")
    proposer, _ = llm_proposer(tmp_path, wanted | {"focus": ["unknown"]})
    assert proposer.propose(0, report(rates)).focus == ("b", "c")
    proposer, _ = llm_proposer(tmp_path, wanted | {"action": "reuse_seed"})
    assert proposer.propose(0, report(rates)).focus == ()


def curated(tmp_path, *replies, cap=None, bus=None, **more):
    llm = ScriptedLLM(*replies, "")
    data = DataConfig(max_episodes=cap)
    return CuratedProposer(llm, tmp_path / "pages", schedule(), data, bus=bus, **more), llm


def counts(*numbers):
    return [plan(num_episodes=n, notes=f"plan {n}") for n in numbers]


def events(bus):
    return [(e["stage"], e["kind"], e["payload"]) for e in logged(bus.log_path)]


def test_best_plan_is_refined(tmp_path):
    bus = EventBus(tmp_path / "events.jsonl")
    scores = [{"index": 0, "score": 3}, {"index": 1, "score": 9.5, "reason": "r"}]
    proposer, llm = curated(
        tmp_path, counts(5, 6, 7), scores, plan(num_episodes=8, notes="better"), bus=bus
    )
    proposal = proposer.propose(2, None)
    assert (proposal.num_episodes, proposal.notes) == (8, "better")
    assert len(llm.prompts) == 3
    assert '"notes": "plan 6"' in llm.prompts[2]
    assert events(bus) == [
        ("orchestrator", "knowledge_used", {"pages": [], "chars": 0}),
        ("curation", "curation_candidates", {"count": 3, "notes": ["plan 5", "plan 6", "plan 7"]}),
        ("curation", "curation_scored", {"winner": 1, "scores": [3.0, 9.5, None]}),
        ("curation", "curation_final", {"proposal": proposal.model_dump(mode="json")}),
    ]
    assert {e["run_id"] for e in logged(bus.log_path)} == {"curation"}


@pytest.mark.parametrize(
    ("count", "expected"),
    [(3, 3), (-5, 30), (0, 30), (3.9, 30), (10**40, 30), (1e300, 30), ("many", 30), (None, 30),
     (True, 30), (float("nan"), 30), (float("inf"), 30), ([], 30)],
)  # fmt: skip
def test_candidate_without_a_usable_count_takes_the_smaller_cap(tmp_path, count, expected):
    proposer, _ = curated(tmp_path, json.dumps([plan(num_episodes=count)]), cap=30)
    assert proposer.propose(2, None).num_episodes == expected  # the schedule says 40


@pytest.mark.parametrize(
    ("scores", "winner"),
    [
        ([{"index": 1, "score": 5}, {"index": 2, "score": 5}, {"index": 0, "score": 4}], 6),
        ([{"index": 3, "score": 10}, {"index": -1, "score": 10}, {"index": 2, "score": 1}], 7),
        ([{"index": True, "score": 9}, {"index": 0, "score": True}, {"index": 2, "score": 0}], 7),
        ('[{"index": 0, "score": NaN}, {"index": 1, "score": 1e999}, {"index": 2, "score": 1}]', 7),
        ([{"index": 1, "score": 10.5}, {"index": 0, "score": -1}], 5),
        ([7, None, "x", {"index": 2}, {"score": 1}], 5),
        ("no idea", 5),
        ("", 5),
    ],
)
def test_unusable_scores_are_dropped(tmp_path, scores, winner):
    proposer, _ = curated(tmp_path, counts(5, 6, 7), scores, "refuse")
    assert proposer.propose(0, None).num_episodes == winner


def test_unusable_plans_get_one_repair_turn_then_the_schedule(tmp_path):
    bus = EventBus(tmp_path / "events.jsonl")
    proposer, llm = curated(tmp_path, [plan(action="x"), 7, None], counts(4), bus=bus)
    assert proposer.propose(0, None).num_episodes == 4
    proposer, llm = curated(tmp_path, "[" * 9999, [plan(action="x")], counts(4), bus=bus)
    assert proposer.propose(1, None).num_episodes == 20
    assert len(llm.prompts) == 2
    assert events(bus)[-1] == (
        "curation",
        "curation_fallback",
        {"error": "expected plans with a known action, got none"},
    )
