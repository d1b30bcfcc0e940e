import pytest

from cadenza.core.errors import NotReadyError
from cadenza.loop.config import LLMCallsConfig
from cadenza.loop.errors import LLMCallError
from cadenza.loop.llm import GuardedLLM, RecordedLLM, asking
from cadenza.loop.llm.protocol import Answer
from cadenza.loop.store import JobStore
from cadenza.loop.store.overview import overviews

#: A dollar for a token of a reply.
PRICES = {"usd_per_million_input": 0.0, "usd_per_million_output": 1e6}


class Counting:
    """Says how often it was asked."""

    provider, model = "counting", "m"

    def __init__(self):
        self.asked = 0

    def ask(self, question):
        self.asked += 1
        return Answer(text=f"{question.prompt}:{self.asked}", tokens_in=1, tokens_out=2)


@pytest.fixture
def store(tmp_path):
    with JobStore(tmp_path / "cadenza.db") as opened:
        opened.create_run("r", "{}")
        yield opened


def test_repeated_step_gets_the_replies_of_the_store(store, tmp_path):
    asker = Counting()
    lease = store.leases.acquire("r", "me", ttl_s=60.0)
    for _ in range(2):  # the second time as another controller that executes the step again
        llm = RecordedLLM(GuardedLLM(asker), store.replies, lambda: lease)
        with asking(0, "propose"):
            assert [llm.complete("a"), llm.complete("b")] == ["a:1", "b:2"]
        with asking(0, "lessons"):
            assert llm.complete("c") == "c:3"
    assert asker.asked == 3
    row = store.replies.get("r", 0, "propose", 1)
    assert (row.text, row.tokens_in, row.tokens_out, row.cost_usd) == ("b:2", 1, 2, None)


def test_call_outside_a_place_is_refused(store):
    lease = store.leases.acquire("r", "me", ttl_s=60.0)
    llm = RecordedLLM(GuardedLLM(Counting()), store.replies, lambda: lease)
    with pytest.raises(NotReadyError, match="expected a call inside"):
        llm.complete("a")


def test_limit_counts_the_replies_of_the_whole_run_and_of_no_other(store):
    calls = LLMCallsConfig(max_cost_usd=4.0, **PRICES)
    store.create_run("other", "{}")
    for run, asked in (("other", 2), ("r", 2), ("r", 0)):  # the last one goes on with the second
        asker, lease = Counting(), store.leases.acquire(run, "me", ttl_s=60.0)
        llm = RecordedLLM(GuardedLLM(asker, calls), store.replies, lambda held=lease: held)
        for cycle in range(3 if asked else 9):
            with asking(cycle, "propose"):
                llm.complete("a", max_tokens=2)
        assert asker.asked == asked
        assert store.replies.spent_usd(run) == 4.0
        store.leases.release(lease)
    assert store.replies.spent_usd("nobody") == 0.0
    [told] = overviews(store.database, "r")[0].rows["replies"]
    assert told == {"run_id": "r", "calls": 9, "failed": 7, "cost_usd": 4.0}


def test_every_attempt_is_booked_before_it_is_made(store):
    class Failing(Counting):
        def ask(self, question):
            self.asked += 1
            booked.append(store.replies.booked_usd("r", 0, "propose", 0))
            raise LLMCallError("time-out", passing=True, billed=True)

    booked = []
    lease = store.leases.acquire("r", "me", ttl_s=60.0)
    guard = GuardedLLM(Failing(), LLMCallsConfig(retries=2, **PRICES), sleep=lambda _: None)
    with asking(0, "propose"):
        assert RecordedLLM(guard, store.replies, lambda: lease).complete("a", max_tokens=2) == ""
    assert booked == [2.0, 4.0, 6.0]
    assert store.replies.spent_usd("r") == 6.0
