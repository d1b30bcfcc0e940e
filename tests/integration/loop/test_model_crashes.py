"""Controllers with a paid model that die at any point: equal events, costs within the limit."""

import json
import shutil
from contextlib import suppress

import pytest

from cadenza.loop.errors import LLMCallError
from cadenza.loop.llm.protocol import Answer
from tests.campaigns import size
from tests.integration.loop.loop_harness import built, configured
from tests.integration.loop.test_controller_crashes import Crash, Fate, bury, mortal
from tests.integration.loop.what_is_left import without_days
from tests.loop_fakes import FakeStack

#: Most that a reply of 1024 tokens can cost at these prices, US dollars.
MOST_USD = 0.001024
TOLD = {"knowledge_used", "proposal_fallback", "decision", "knowledge_updated"}


class Model:
    """Plans the first cycle, writes lessons, and is down when it should plan the second one.

    Attributes:
        paid: Calls that cost their most.
    """

    provider, model = "fake", "m"

    def __init__(self):
        self.paid = 0

    def ask(self, question):
        if "Cycle: 1\n" in question.prompt:
            raise LLMCallError("status 503: overloaded")
        self.paid += 1
        if "Rewrite the lessons." in question.prompt:
            return Answer(text="- a lesson", tokens_in=0, tokens_out=question.max_tokens)
        plan = json.dumps({"action": "reuse_seed", "num_episodes": 3})
        return Answer(text=plan, tokens_in=0, tokens_out=question.max_tokens)


def settings_in(folder, limit):
    calls = {"usd_per_million_input": 0.0, "usd_per_million_output": 1.0, "max_cost_usd": limit}
    calls |= {"max_reply_tokens": 1024, "retries": 0}
    return configured(folder, llm="openai:m", llm_calls=calls)


@pytest.fixture
def live(monkeypatch, sqlite_template, tmp_path_factory):
    """Call it with the points to die at; returns what was told, paid, known, and the points."""

    def run(*deaths, limit=1.0):
        folder, model = tmp_path_factory.mktemp("live"), Model()
        (folder / "runs").mkdir()
        shutil.copyfile(sqlite_template, folder / "runs" / "cadenza.db")
        monkeypatch.setattr("cadenza.loop.orchestrator.assembly.make_llm", lambda spec: model)
        stack = FakeStack([0.4, 0.9])
        for at in (*deaths, None):
            with built(settings_in(folder, limit), stack) as loop:
                if loop.store.list_runs():
                    bury(loop.store)
                fate = Fate(at)
                with mortal(monkeypatch, fate), suppress(Crash):
                    loop.run()
                events = loop.store.events.find("run")
                known = loop.store.replies.spent_usd("run")
        told = [
            (e.seq, e.kind, e.cycle, json.dumps(json.loads(e.payload)).replace(str(folder), ""))
            for e in events
            if e.kind in TOLD
        ]
        files = (folder / "knowledge").rglob("*.md")
        pages = {file.name: without_days(file.read_text()) for file in files}
        return (told, pages), model.paid, known, fate.points

    return run


def test_run_with_a_model_that_dies_once_tells_what_an_undisturbed_one_tells(live):
    undisturbed, paid, known, points = live()
    kinds = [kind for _, kind, *_ in undisturbed[0]]
    assert kinds == [
        "knowledge_used", "decision", "knowledge_updated",
        "proposal_fallback", "decision", "knowledge_updated",
    ]  # fmt: skip
    assert json.loads(undisturbed[0][3][3]) == {"error": "status 503: overloaded"}
    assert known == pytest.approx(paid * MOST_USD)
    for at in range(2, points + 1, size(47, 5)):
        left, paid, known, _ = live(at)
        assert left == undisturbed, f"died at point {at} of {points}"
        assert known >= paid * MOST_USD - 1e-12


def test_kills_at_one_point_again_and_again_never_exceed_the_limit(live):
    most_paid = 0
    for at in size((6, 9), range(3, 13)):
        _, paid, known, _ = live(*[at] * 5, limit=3.5 * MOST_USD)
        assert paid * MOST_USD - 1e-12 <= known <= 3.5 * MOST_USD, f"died at point {at}"
        most_paid = max(most_paid, paid)
    assert most_paid == 3
