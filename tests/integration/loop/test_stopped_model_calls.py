"""Stopping a run that waits for a language model: at once, and nothing paid is forgotten."""

import threading

import pytest

from cadenza.loop.jobs.terms import StopLevel
from cadenza.loop.llm.protocol import Answer
from cadenza.loop.status_report import run_status
from tests.integration.loop.loop_harness import built, configured
from tests.loop_fakes import FakeStack

PLAN = '{"action": "reuse_seed", "num_episodes": 3}'
#: Most that a reply of 1000 tokens can cost at these prices, US dollars.
MOST_USD = 0.001


class Hanging:
    """Hangs at its first calls that hold a text, then answers."""

    provider, model = "fake", "m"

    def __init__(self, text):
        self.text, self.hang = text, True
        self.asked, self.released = threading.Event(), threading.Event()
        self.prompts = []

    def ask(self, question):
        self.prompts.append(question.prompt)
        if self.hang and self.text in question.prompt:
            self.asked.set()
            self.released.wait(280.0)
        text = "- a lesson" if "Rewrite the lessons." in question.prompt else PLAN
        return Answer(text=text, tokens_in=0, tokens_out=question.max_tokens)


@pytest.mark.parametrize(
    ("text", "priced", "by"),
    [("Rewrite the lessons.", True, "store"), ("Cycle: 0\n", False, "signal")],
)
def test_stop_takes_effect_while_a_model_hangs(text, priced, by, tmp_path, monkeypatch):
    model = Hanging(text)
    monkeypatch.setattr("cadenza.loop.orchestrator.assembly.make_llm", lambda spec: model)
    prices = {"usd_per_million_input": 0.0, "usd_per_million_output": 1.0}
    settings = configured(
        tmp_path,
        llm="openai:m",
        llm_calls={"max_reply_tokens": 1000, **(prices if priced else {})},
        budgets={"max_cycles": 1},
    )
    stack, level, ended = FakeStack([0.9]), [StopLevel.NONE], []

    def loop_of():
        return built(settings, stack, stop=lambda: level[0])

    def used(loop):
        return run_status(loop.store, "run", workdir=settings.workdir).language_model

    with loop_of() as loop:
        thread = threading.Thread(target=lambda: ended.append(loop.run()))
        thread.start()
        assert model.asked.wait(120.0)
        assert used(loop).asked_now
        paid = (len(model.prompts) if priced else 0) * MOST_USD
        assert used(loop).cost_usd == (pytest.approx(paid) if priced else None)
        if by == "signal":
            level[0] = StopLevel.END
        else:
            loop.store.request_stop("run")
        thread.join(120.0)  # looked for 5 times a second, in the store once
        assert not thread.is_alive()  # though the model still hangs
        assert [summary.stop_reason for summary in ended] == ["stop requested"]
        status = run_status(loop.store, "run", workdir=settings.workdir)
        assert (status.status, status.language_model.asked_now) == ("stopped", False)
        assert loop.store.replies.spent_usd("run") == pytest.approx(paid)
    incidents = (loop.folder / "incidents.jsonl").read_text()
    assert "while fake:m was asked; its call is abandoned, and a resumed run" in incidents
    before, model.hang, level[0] = len(model.prompts), False, StopLevel.NONE
    with loop_of() as loop:
        assert loop.run().stop_reason is not None
        status = run_status(loop.store, "run", workdir=settings.workdir)
        assert (status.status, status.language_model.asked_now) == ("finished", False)
        # the call left behind may be paid for, so it counts beside the one that replaced it
        total = (len(model.prompts) if priced else 0) * MOST_USD
        assert loop.store.replies.spent_usd("run") == pytest.approx(total)
    model.released.set()
    assert model.prompts[before] == model.prompts[before - 1]
    assert len(set(model.prompts)) == len(model.prompts) - 1
