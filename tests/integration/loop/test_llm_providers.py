"""The clients of all providers, through their official packages, against a local server."""

import logging
import re
import threading

import pytest

from cadenza.loop.config import LLMCallsConfig
from cadenza.loop.llm import GuardedLLM, RecordedLLM, asking, make_llm
from cadenza.loop.llm import adapter as service
from cadenza.loop.store import JobStore
from tests.integration.loop.llm_server import (
    Reply,
    anthropic_body,
    error_body,
    openai_body,
    serving,
)

KEY = "secret-0123456789-abcdef"  # of no shape that is told by itself
PROVIDERS = ["anthropic", "openai", "gemini"]
PRICES = {"usd_per_million_input": 3.0, "usd_per_million_output": 15.0}
#: Most that `why?` can cost with 100 tokens of reply: 4 bytes and 256 tokens around them at 3
#: dollars per million, 100 tokens at 15 dollars per million.
MOST_USD = (4 + 256) * 3e-6 + 100 * 15e-6


@pytest.fixture(scope="module")
def server():
    with serving() as running:
        yield running


@pytest.fixture(autouse=True)
def _clean(server, monkeypatch):
    server.requests.clear()
    server.say(Reply())
    for name in ("ANTHROPIC_AUTH_TOKEN", "GOOGLE_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.setenv(name, KEY)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", server.address)


def client(server, provider):
    return make_llm(f"{provider}:test-model{address(server, provider)}")


def address(server, provider):
    paths = {"openai": "/v1", "gemini": "/v1beta/openai/"}
    return f"@{server.address}{paths[provider]}" if provider in paths else ""


def good(provider, text="fine", **more):
    make = anthropic_body if provider == "anthropic" else openai_body
    return Reply(body=make(text, **more))


def guarded(server, provider, *, retries=0, timeout_s=20.0, pauses=None, **prices):
    calls = LLMCallsConfig(timeout_s=timeout_s, retries=retries, **prices)
    sleep = (lambda _: None) if pauses is None else pauses.append
    return GuardedLLM(client(server, provider), calls, sleep=sleep)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_good_answer_brings_text_tokens_and_cost(server, provider):
    server.say(good(provider))
    row = guarded(server, provider, **PRICES).reply("why?", system="be brief", max_tokens=77)
    assert (row.text, row.error) == ("fine", None)
    assert (row.provider, row.model) == (provider, "test-model")
    assert (row.tokens_in, row.tokens_out) == (2095, 503)
    # 2095 tokens at 3 dollars and 503 at 15 dollars per million
    assert row.cost_usd == pytest.approx(0.013830)


def test_anthropic_request_is_a_message(server):
    server.say(good("anthropic"))
    client(server, "anthropic").complete("why?", system="be brief", max_tokens=77)
    (request,) = server.requests
    assert request.path == "/v1/messages"
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.body == {
        "model": "test-model",
        "max_tokens": 77,
        "system": "be brief",
        "messages": [{"role": "user", "content": "why?"}],
    }


@pytest.mark.parametrize(
    ("provider", "path"),
    [("openai", "/v1/chat/completions"), ("gemini", "/v1beta/openai/chat/completions")],
)
def test_compatible_request_is_a_chat_completion(server, provider, path):
    server.say(good(provider))
    client(server, provider).complete("why?", system="be brief", max_tokens=77)
    (request,) = server.requests
    assert request.path == path
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.body == {
        "model": "test-model",
        "max_tokens": 77,
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "why?"},
        ],
    }


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
FORMAT = {"type": "json_schema", "schema": SCHEMA}
STRICT = {"type": "json_schema", "json_schema": {"name": "reply", "schema": SCHEMA, "strict": True}}


@pytest.mark.parametrize("provider", PROVIDERS)
def test_schema_of_a_reply_goes_to_the_service_until_it_refuses_it(server, provider):
    llm = guarded(server, provider)
    refused = Reply(status=400, body=error_body(provider, "invalid_request_error", "schema"))
    server.say(good(provider), refused, good(provider))
    with asking(0, "propose") as place:
        place.schema = SCHEMA
        assert [llm.complete("why?") for _ in range(3)] == ["fine"] * 3
    sent = [request.body for request in server.requests]
    asked = [body.get("output_config") or body.get("response_format") for body in sent]
    form = {"format": FORMAT} if provider == "anthropic" else STRICT
    assert asked == [form, form, None, None]  # the second call was refused and made again


UNUSABLE = {
    "refusal": (
        "refused",
        anthropic_body("no", stop_reason="refusal"),
        openai_body(None, refusal="no"),
    ),
    "empty content": ("no text", anthropic_body(), openai_body(None)),
    "other shape": ("expected", anthropic_body(content={"a": 1}), openai_body("x", choices=[])),
    "non-text content": (
        "no text|expected",
        anthropic_body(content=[7, None, {"type": "image"}]),
        openai_body("x", choices=[{"message": {"content": 7}}]),
    ),
    "NaN": ("no JSON", b'{"a": NaN}', b'{"a": NaN}'),
    "garbage": ("no JSON", b"\xff{{garbage", b"<html>gateway</html>"),
    "deep": ("no JSON", b'{"a":' + b"[" * 200_000, b'{"a":' + b"[" * 200_000),
}


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("case", UNUSABLE)
def test_unusable_body_becomes_the_empty_text_with_an_error(server, provider, case):
    problem, anthropic, openai = UNUSABLE[case]
    server.say(Reply(body=anthropic if provider == "anthropic" else openai))
    row = guarded(server, provider, **PRICES).reply("why?")
    assert row.text == ""
    assert re.search(problem, row.error or "")
    assert row.cost_usd > 0.0  # a reply of no use is paid for


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("counts", [(-1, -503), (2095.5, 503.0), ("2095", "many"), None])
def test_counts_that_are_none_leave_the_text_and_cost_the_most(server, provider, counts):
    names = {"anthropic": ("input_tokens", "output_tokens")}
    keys = names.get(provider, ("prompt_tokens", "completion_tokens"))
    usage = None if counts is None else dict(zip(keys, counts, strict=True))
    server.say(good(provider, usage=usage))
    row = guarded(server, provider, **PRICES).reply("why?", max_tokens=100)
    assert (row.text, row.error) == ("fine", None)
    assert (row.tokens_in, row.tokens_out) == (None, None)
    assert row.cost_usd == pytest.approx(MOST_USD)


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("status", [400, 401])
def test_refused_request_is_not_repeated(server, provider, status):
    body = error_body(
        provider, "some_error", f"Incorrect key {KEY} or AIzaSyOther1234 or sk-other1234 given"
    )
    server.say(Reply(status=status, body=body))
    row = guarded(server, provider, retries=3).reply("why?")
    assert len(server.requests) == 1
    assert row.text == ""
    assert row.error is not None
    assert f"status {status}" in row.error
    assert KEY not in row.error
    assert "AIzaSy" not in row.error
    assert "sk-other" not in row.error


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("status", [429, 500, 529])
def test_passing_failure_is_repeated_with_doubled_pauses(server, provider, status):
    failure = Reply(status=status, body=error_body(provider, "overloaded_error", "Overloaded"))
    server.say(failure, failure, good(provider))
    pauses = []
    assert guarded(server, provider, retries=2, pauses=pauses).complete("why?") == "fine"
    assert pauses == [1.0, 2.0]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_pause_is_what_the_service_asks_for_within_the_bound(server, provider):
    limited = [
        Reply(status=429, body=b"{}", headers={"retry-after": text})
        for text in ("7", "999999999", "Wed, 21 Oct 2026 07:28:00 GMT", "-3")
    ]
    server.say(*limited, good(provider))
    pauses = []
    assert guarded(server, provider, retries=4, pauses=pauses).complete("why?") == "fine"
    # seven seconds; the bound; then our own 2^2 and 2^3 for what is no number
    assert pauses == [7.0, 60.0, 4.0, 8.0]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_huge_body_is_not_read_to_its_end(server, provider, monkeypatch):
    monkeypatch.setattr(service, "MAX_BODY_BYTES", 100_000)
    server.say(good(provider, "x" * 5_000_000))
    row = guarded(server, provider).reply("why?")
    assert row.text == ""
    assert "at most 100000 bytes" in (row.error or "")


@pytest.mark.parametrize("provider", PROVIDERS)
def test_silent_server_costs_no_more_than_the_time_limit(server, provider):
    released = threading.Event()
    server.say(Reply(before=lambda: released.wait(280.0)))
    row = guarded(server, provider, timeout_s=0.3).reply("why?")
    released.set()
    for call in threading.enumerate():  # left behind, and else asks beside the next test
        if call.name == "language-model-call":
            call.join(280.0)
    assert row.text == ""
    assert row.error in {"time-out", "no reply within 0.3 s"}


@pytest.mark.parametrize("provider", PROVIDERS)
def test_key_appears_nowhere(server, provider, caplog, tmp_path):
    caplog.set_level(logging.DEBUG)
    failure = error_body(provider, "authentication_error", f"bad key {KEY}")
    server.say(Reply(status=401, body=failure), good(provider, f"your key is {KEY}"))
    with JobStore(tmp_path / "cadenza.db") as store:
        store.create_run("r", "{}")
        lease = store.leases.acquire("r", "me", ttl_s=60.0)
        llm = RecordedLLM(guarded(server, provider), store.replies, lambda: lease)
        with asking(0, "propose"):
            assert llm.complete("why?") == ""
            assert llm.complete("why?") == "your key is [key]"
        kept = [store.replies.get("r", 0, "propose", number) for number in (0, 1)]
    assert None not in kept
    assert len(server.requests) == 2
    assert "secret" in str(server.requests[0].headers)  # it was sent
    assert "secret" not in caplog.text
    assert "secret" not in repr(kept)
    assert "secret" not in repr(vars(llm))
