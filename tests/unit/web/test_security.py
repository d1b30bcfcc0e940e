"""Who gets past the guard of the dashboard."""

import asyncio

import pytest

from cadenza.core.errors import ConfigurationError
from cadenza.loop.requests import DASH_VARIABLE
from cadenza.web.security import Access, Guard, address_of, read_token

WORD = "correct-horse-battery-staple"


@pytest.mark.parametrize(
    ("host", "given", "served"),
    [
        ("127.0.0.1", "localhost:8321", True),
        ("127.0.0.1", "[::1]:8321", True),
        ("127.0.0.1", "LOCALHOST", True),
        ("127.0.0.1", "evil.example:8321", False),
        ("127.0.0.1", "10.0.0.7", False),
        ("127.0.0.1", "", False),
        ("127.0.0.1", "localhost.evil.example", False),
        ("127.0.0.1", "localhost]", False),
        ("127.0.0.1", "localhost]evil.example", False),
        ("127.0.0.1", "localhost:@evil.example", False),
        ("127.0.0.1", "localhost:80/evil.example", False),
        ("127.0.0.1", "localhost:80:80", False),
        ("10.0.0.1", "10.0.0.7:8321", True),
        ("10.0.0.1", "evil.example", False),
        ("10.0.0.1", "lab.example", True),
    ],
)
def test_a_request_must_name_this_server(host, given, served):
    assert Access(token=WORD, host=host, names=("lab.example",)).serves(given) is served


def test_a_session_lasts_until_its_time_and_only_with_its_own_signature(monkeypatch):
    access = Access(token=WORD)
    session = access.new_session()
    until, _, signature = session.partition(".")
    assert access.has_session(session)
    assert Access(token=WORD).has_session(session)  # a restart keeps it
    assert not Access(token=f"{WORD}2").has_session(session)
    assert not access.has_session(f"{int(until) + 1}.{signature}")
    assert not access.has_session("")
    monkeypatch.setattr("cadenza.web.security.time.time", lambda: float(until) + 1.0)
    assert not access.has_session(session)


def test_a_session_is_one_visitors_and_can_be_ended():
    access = Access(token=WORD)
    one, other = access.new_session(), access.new_session()
    assert one != other
    access.end_session(one)
    access.end_session("no session")
    assert not access.has_session(one)
    assert access.has_session(other)
    for _ in range(3000):
        access.end_session(access.new_session())
    assert len(access._ended) == 1024


@pytest.mark.parametrize(
    ("client", "address"),
    [
        (("10.0.0.7", 1), "10.0.0.7"),
        (("2001:db8::7", 1), "2001:db8::/64"),
        (("2001:db8::ffff:7", 1), "2001:db8::/64"),
        (("fe80::1%eth0", 1), "fe80::/64"),
        (("::ffff:10.0.0.7", 1), "::ffff:10.0.0.7"),
        (("a pipe", 0), "a pipe"),
        (None, "unknown"),
    ],
)
def test_failures_count_for_an_address_or_a_network_of_ipv6(client, address):
    assert address_of({"client": client}) == address


def test_the_application_gets_cookies_as_they_are_and_no_header_with_them():
    seen = {}

    async def app(scope, receive, send):
        seen.update(scope)

    headers = [(b"host", b"localhost"), (b"cookie", b'a="\\101"; a=second;; b = c=d ;e')]
    scope = {"type": "http", "method": "GET", "path": "/", "headers": headers}
    asyncio.run(Guard(app, Access())(scope, None, None))
    assert seen["cookies"] == {"a": '"\\101"', "": "", "b": "c=d", "e": ""}
    assert [name for name, _ in seen["headers"]] == [b"host"]


def test_without_a_token_nothing_is_one():
    access = Access()
    assert not access.needs_token
    assert not access.has_token("")


def test_an_address_that_fails_often_waits_and_others_do_not(monkeypatch):
    moment = [100.0]
    monkeypatch.setattr("cadenza.web.security.time.monotonic", lambda: moment[0])
    access = Access(token=WORD)
    for _ in range(9):
        access.note_failure("a")
    assert not access.is_blocked("a")
    access.note_failure("a")
    assert access.is_blocked("a")
    assert not access.is_blocked("b")
    moment[0] += 61.0
    assert not access.is_blocked("a")


def test_failures_of_many_addresses_take_no_memory():
    access = Access(token=WORD)
    for number in range(5000):
        access.note_failure(str(number))
    assert len(access._failed) == 1024


def test_a_form_is_of_one_visitor():
    access = Access()
    number = access.form_number("a" * 32)
    assert access.is_own_form("a" * 32, number)
    assert not access.is_own_form("b" * 32, number)
    assert not access.is_own_form("", access.form_number(""))
    assert not Access().is_own_form("a" * 32, number)  # another server's key


def test_loopback_alone_goes_without_a_token(tmp_path, monkeypatch):
    monkeypatch.delenv(DASH_VARIABLE, raising=False)
    assert read_token("127.0.0.1", None) is None
    with pytest.raises(ConfigurationError, match=r"--token-file dash\.token"):
        read_token("10.0.0.1", None)
    with pytest.raises(ConfigurationError, match="expected a token"):
        read_token("127.0.0.1", None, is_shared=True)  # a proxy in front of it
    file = tmp_path / "token"
    file.write_text(f"{WORD}\n")
    file.chmod(0o600)
    assert read_token("10.0.0.1", file) == WORD
    monkeypatch.setenv(DASH_VARIABLE, WORD)
    assert read_token("192.168.0.2", None) == WORD
    for short in ("", "short", "with a space in it, but long enough", "é" * 30):
        file.write_text(short)
        with pytest.raises(ConfigurationError, match="at least 20"):
            read_token("127.0.0.1", file)
    with pytest.raises(ConfigurationError, match="expected a file"):
        read_token("127.0.0.1", tmp_path / "absent")


@pytest.mark.parametrize("mode", [0o644, 0o640])
def test_a_token_that_others_may_read_warns_on_loopback_and_is_refused_elsewhere(
    mode, tmp_path, caplog
):
    file = tmp_path / "token"
    file.write_text(WORD)
    file.chmod(mode)
    assert read_token("127.0.0.1", file) == WORD
    assert f"chmod 600 {file}" in caplog.text
    for host, is_shared in (("10.0.0.1", False), ("127.0.0.1", True)):
        with pytest.raises(ConfigurationError, match="chmod 600"):
            read_token(host, file, is_shared=is_shared)
