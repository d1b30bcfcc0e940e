import logging

import pytest

from cadenza.core.errors import StorageError
from cadenza.loop.config import LLMCallsConfig
from cadenza.loop.errors import LLMCallError, StaleLeaseError, StopRequestedError
from cadenza.loop.jobs.terms import StopLevel
from cadenza.loop.llm import GuardedLLM
from cadenza.loop.llm.guard import ask_safely
from cadenza.loop.llm.protocol import Answer


class Scripted:
    """Answers, or raises, in turn; the last one again and again."""

    provider, model = "scripted", "m"

    def __init__(self, *script):
        self.script, self.questions = list(script), []

    def ask(self, question):
        self.questions.append(question)
        step = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(step, Exception):
            raise step
        return step() if callable(step) else Answer(text=step)


def test_prompt_beyond_the_budget_is_not_sent():
    asker = Scripted("x")
    llm = GuardedLLM(asker, LLMCallsConfig(max_prompt_chars=8000))
    assert llm.complete(7998 * "1", system="12") == "x"
    row = llm.reply(7999 * "1", system="12")
    assert len(asker.questions) == 1
    assert row.error == "prompt: expected at most 8000 characters, got 8001"
    assert row.text == ""


def test_stop_ends_the_pause_before_another_try_which_is_not_booked():
    asker, booked = Scripted(LLMCallError("status 529", passing=True, retry_after_s=3600.0)), []
    llm = GuardedLLM(asker, stop=lambda: StopLevel(bool(asker.questions)))
    with pytest.raises(StopRequestedError, match="a resumed run asks again"):
        ask_safely(llm, "why?")
    with pytest.raises(StopRequestedError):
        llm.reply("why?", book=booked.append)
    assert (len(asker.questions), booked) == (1, [])


#: 8 bytes and 256 tokens around them at 2 dollars per million, 10 tokens at 10 dollars.
PRICES = {"usd_per_million_input": 2.0, "usd_per_million_output": 10.0}
MOST_USD = (8 + 256) * 2e-6 + 10 * 10e-6


@pytest.mark.parametrize(
    ("script", "attempts", "cost"),
    [
        ([Answer(text="x", tokens_in=100, tokens_out=5)], 1, 100 * 2e-6 + 5 * 10e-6),
        ([Answer(text="x", tokens_in=100)], 1, MOST_USD),
        ([LLMCallError("refused")], 1, 0.0),
        ([LLMCallError("late", passing=True, billed=True)], 2, 2 * MOST_USD),
        (
            [LLMCallError("late", passing=True, billed=True), Answer(text="", tokens_out=1)],
            2,
            2 * MOST_USD,
        ),
        ([KeyError("x")], 1, MOST_USD),
    ],
)
def test_reply_costs_what_all_its_attempts_cost_or_may_have(script, attempts, cost):
    asker = Scripted(
        *(step if isinstance(step, Exception) else lambda s=step: s for step in script)
    )
    llm = GuardedLLM(asker, LLMCallsConfig(retries=1, **PRICES), sleep=lambda _: None)
    row = llm.reply("12\N{EURO SIGN}", system="123", max_tokens=10)
    assert len(asker.questions) == attempts
    assert row.cost_usd == pytest.approx(cost)


def test_no_attempt_is_made_that_could_cost_more_than_is_left():
    asker = Scripted(LLMCallError("late", passing=True, billed=True))
    llm = GuardedLLM(asker, LLMCallsConfig(retries=9, **PRICES), sleep=lambda _: None)
    row = llm.reply("12345678", max_tokens=10, left_usd=2.5 * MOST_USD)
    assert len(asker.questions) == 2
    assert row.cost_usd == pytest.approx(2 * MOST_USD)
    assert "expected a call within the 0.0003 US dollars that are left" in (row.error or "")
    assert llm.reply("12345678", max_tokens=10, left_usd=-1.0).cost_usd == 0.0
    assert len(asker.questions) == 2
    assert GuardedLLM(asker).reply("12345678", left_usd=0.0).cost_usd is None


class Client:
    def __init__(self, result):
        self.result = result

    def complete(self, prompt, *, system=None, max_tokens=1024):
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


@pytest.mark.parametrize("result", [None, 7, b"x", LLMCallError("x"), RuntimeError("sk-secret1")])
def test_any_client_is_asked_safely(result, caplog):
    caplog.set_level(logging.DEBUG)
    assert ask_safely(Client(result), "why?") == ""
    assert "secret" not in caplog.text


@pytest.mark.parametrize("error", [StaleLeaseError("lost"), StorageError("full")])
def test_failures_of_the_run_itself_pass(error):
    with pytest.raises(type(error)):
        ask_safely(Client(error), "why?")
