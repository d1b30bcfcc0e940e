"""Whatever comes over the wire: no failure, nothing of other folders, no hang, no growth."""

import asyncio
import contextlib
import http.client
import logging
import random
import resource
import time
from pathlib import Path

import pytest

from tests.campaigns import size
from tests.dashboards import CANARY, WORD, furnished, serving, token_in
from tests.loop_runs import RUN

REQUESTS = size(1_000, 10_000)
#: Requests at once; how long one waits for an answer that need not come, as half requests get none.
AT_ONCE, PATIENCE_S = 48, 1.0
#: More than what the process may take from its first tenth of the requests on, bytes.
GROWTH = 64 << 20
METHODS = (
    *(b"GET",) * 60,
    *(b"POST",) * 30,
    *(b"HEAD", b"PUT", b"DELETE", b"OPTIONS", b"TRACE", b"CONNECT", b"PATCH", b"PRI"),
    *(b"get", b"", b"G\x00T", b"G T", b"A" * 5_000, b"\xff"),
)
#: Without the logout, which would end the visitor's session.
PATHS = (
    *("/", "/login", "/knowledge", "/metrics", "/compare", "/api/runs", "/live/runs"),
    *("/api/openapi.json", "/api/knowledge", "/api/video", "/static/style.css", "/favicon.ico"),
    *("/docs", "/knowledge/tasks/crossing.md", "/knowledge/link.md", "/static/app.js", "*"),
    *(
        f"/runs/{RUN}{rest}"
        for rest in (
            *("", "/", "/stop", "/resume", "/approve", "/reject", "/events", "/events/1", "/log"),
            *("/cycles/0", "/cycles/1/log/train", "/cycles/0/log/eval_candidate_0", "/films/0"),
        )
    ),
    *(f"/live/runs/{RUN}", f"/live/runs/{RUN}/log", f"/api/runs/{RUN}", f"/api/runs/{RUN}/events"),
    *("/results", "/results/leaderboard", "/results/x", "/results/x/verify", "/results/x/film"),
    *(f"/api/runs/{RUN}/videos", "/runs/link", "/runs/%2e%2e", "/api/runs/.."),
)
#: Parts of paths that are no names.
PARTS = (
    *("..", "%2e%2e", "..%2f..%2fsecret", "%2e%2e%2fsecret%2fsecret.mp4", "%252e%252e", "....//"),
    *("%00", "%0a", "%0d%0aset-cookie:a=b", "%ff%fe", "%c0%ae%c0%ae%c0%af", "%ed%a0%80", "%"),
    *("..\\", "%5c..%5c", "//evil.example", "/etc/passwd", ";a=b", "%f0%9f%98%80", "a" * 3_000),
    *("a" * 70_000, "%00" * 300, "/" * 500, "{run_id}", "'", '"><img src=x>', "#", "\x7f", "é"),
)
NAMES = ("path", "name", "next", "after", "before", "limit", "cycle", "kind", "text", "stage")
NAMES += ("status", "run", "run", "done", "cycles", "", "%00", "a[]")
VALUES = (
    *("", "0", "-1", "1e9", "nan", "9" * 16, "9" * 400, "%d9%a3", "0x1f", " 1", "1%00", "true"),
    *("runs/link.mp4", "runs/linked/secret.mp4", "runs/cadenza.db.mp4", "../secret/secret.mp4"),
    *("/etc/passwd", "/dev/zero", "/proc/self/environ", "runs/cadenza.db", "controller.log"),
    *("cycle_0/eval_candidate_0.log", "../secret/secret.log", "cycle_1/train.log", "decision"),
    *("//evil.example", "/%5cevil.example", "https://evil.example", "javascript:alert(1)", "all"),
    *("%25%25%25_", "%27%20OR%201=1--", "%00", "%ff", "%ed%a0%80", "running", "x" * 5_000, RUN),
)
HEADERS = (
    *("Range: bytes=0-", "Range: bytes=-1", "Range: bytes=5-1", "Range: bytes=" + "0-0," * 900),
    *("Range: bytes=99999999999999999999-", "Range: lines=1-2", "Range: bytes=", "If-Range: x"),
    *("Last-Event-ID: 1", "Last-Event-ID: -1", "Last-Event-ID: " + "9" * 500, "Last-Event-ID: ²"),
    *("Last-Event-ID: \x01", "Last-Event-ID: nan", "If-Modified-Since: never", "If-None-Match: *"),
    *("Authorization: Bearer x", "Authorization: Basic Og==", "Authorization: Bearer \xff", "X:"),
    *("Cookie: " + "a=b;" * 8_000, 'Cookie: a="' + "\\a" * 20_000 + '"', "Cookie: =;=;;", "Cookie"),
    *("Cookie: cadenza_session=1.2.3; cadenza_visitor=\xe9", "Cookie: theme=<b>", "Cookie: \x80"),
    *(
        "Content-Length: -1",
        "Content-Length: 5",
        "Content-Length: 99999999999",
        "Content-Length: x",
    ),
    *("Transfer-Encoding: chunked", "Transfer-Encoding: gzip", "Transfer-Encoding: chunked, x"),
    *("Content-Type: application/x-www-form-urlencoded", "Content-Type: multipart/form-data", ":"),
    *("Content-Type: application/json", "Content-Type: \x00", "Expect: 100-continue", "no colon"),
    *("Host: evil.example", "Host: localhost:@evil.example", "Host: localhost]", "Host: [::1]:1"),
    *("Origin: null", "Origin: http://evil.example", "Sec-Fetch-Site: cross-site", "Accept: \xff"),
    *(
        "X-Forwarded-Proto: https",
        "X-Forwarded-For: " + "1," * 3_000,
        "Upgrade: websocket",
        " x: y",
    ),
    *("Connection: upgrade", "Connection: keep-alive", "X: " + "y" * 66_000, "X: a\n b", "\x00: x"),
)
BODIES = (
    *("", "reason=why&by=Ada", "reason=%00&by=%ff", "a=b&" * 40, "x" * 70_000, "=&=&;", "%", "é"),
    *("token=x&next=//evil.example", '{"a": 1}', "reason=" + "%F0%9F%98%80" * 4_000 + "&by=x"),
    *("5\r\nhello\r\n0\r\n\r\n", "zz\r\nhello\r\n", "-1\r\n\r\n", "ffffffffffff\r\nx", "0\r\n\r\n"),
    *("5;" + "e" * 900 + "\r\nhello\r\n0\r\nX: y\r\n\r\n", "GET / HTTP/1.1\r\n\r\n", "\x00" * 99),
)


def hostile(rng, own):
    """Return the bytes of a request; ``own`` are a visitor's cookies and number of forms."""
    path = rng.choice(PATHS)
    if rng.random() < 0.3:
        path = rng.choice((f"{path}/{rng.choice(PARTS)}", f"/{rng.choice(PARTS)}{path}"))
    if rng.random() < 0.5:
        asked = (f"{rng.choice(NAMES)}={rng.choice(VALUES)}" for _ in range(rng.randrange(1, 4)))
        path = f"{path}?{'&'.join(asked)}"
    body = rng.choice(BODIES).encode()
    lines = [rng.choice(HEADERS) for _ in range(rng.choice((0, 0, 0, 0, 1, 1, 1, 2)))]
    names = {line.partition(":")[0] for line in lines}
    lines += [] if "Host" in names or rng.random() < 0.02 else ["Host: 127.0.0.1"]
    if rng.random() < 0.6:
        cookies, number = own
        lines.append(f"Cookie: {cookies}")
        body = body + f"&form={number}".encode() if rng.random() < 0.7 else body
    if "Content-Length" not in names and rng.random() < 0.95:
        lines.append(f"Content-Length: {len(body)}")
    if rng.random() < 0.5:
        lines.append("Content-Type: application/x-www-form-urlencoded")
    if rng.random() < 0.8:
        lines.append("Connection: close")
    version = rng.choice((b"HTTP/1.1",) * 60 + (b"HTTP/1.0", b"HTTP/2.0", b"HTTP/9", b""))
    first = b" ".join((rng.choice(METHODS), path.encode("latin-1", "replace"), version))
    head = "\r\n".join(lines).encode("latin-1", "replace")
    data = bytearray(b"\r\n".join((first, head, b"", body)))
    if rng.random() < 0.1:
        for _ in range(rng.choice((1, 1, 5))):
            data[rng.randrange(len(data))] = rng.randrange(256)
    if rng.random() < 0.04:
        del data[rng.randrange(len(data)) :]
    return bytes(data)


async def answer_to(address, data):
    """Return what comes back, of an endless answer its beginning."""
    reader, writer = await asyncio.open_connection(*address, limit=1 << 20)
    got = b""
    try:
        writer.write(data)
        while len(got) < 1 << 20:
            part = await asyncio.wait_for(reader.read(1 << 16), PATIENCE_S)
            if not part:
                break
            got += part
            if b"text/event-stream" in got:
                break
    except (TimeoutError, ConnectionError):
        pass
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
    return got


async def all_answers(address, requests):
    """Return the answers to requests, `AT_ONCE` of which are under way."""
    todo, answers = iter(requests), []

    async def visitor():
        for data in todo:
            answers.append((data, await answer_to(address, data)))

    await asyncio.gather(*(visitor() for _ in range(AT_ONCE)))
    return answers


def asked(address, method, path, body=None, **headers):
    connection = http.client.HTTPConnection(*address, timeout=30.0)
    connection.request(method, path, body, {**headers, "connection": "close"})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer, text


def let_in(address, token):
    """Return cookies of a visitor who is let in, and the number of its forms."""
    answer, text = asked(address, "GET", "/login")
    cookies = answer.headers["set-cookie"].partition(";")[0]
    form = f"form={token_in(text)}&token={token}"
    if token:
        kind = "application/x-www-form-urlencoded"
        answer, _ = asked(address, "POST", "/login", form, cookie=cookies, **{"content-type": kind})
        cookies += "; " + answer.headers["set-cookie"].partition(";")[0]
    return cookies, token_in(text)


class Kept(logging.Handler):
    """Lines of the log that tell of a failure."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        if record.exc_info or record.levelno >= logging.ERROR:
            self.lines.append(self.format(record))


@pytest.fixture
def log():
    kept = Kept()
    loggers = [logging.getLogger(name) for name in ("uvicorn.error", "asyncio", "cadenza")]
    for one in loggers:
        one.addHandler(kept)
    yield kept.lines
    for one in loggers:
        one.removeHandler(kept)


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.parametrize("token", [None, WORD], ids=["loopback", "token"])
def test_no_request_makes_it_fail_hang_grow_or_tell_of_other_folders(tmp_path, log, token):
    rng = random.Random(f"{REQUESTS} {token}")  # noqa: S311 -- no secrets
    with serving(*furnished(tmp_path), token=token) as address:
        own = let_in(address, token)
        requests = [hostile(rng, own) for _ in range(REQUESTS // 2)]
        tenth = len(requests) // 10
        answers = asyncio.run(all_answers(address, requests[:tenth]))
        before = resident()
        answers += asyncio.run(all_answers(address, requests[tenth:]))
        grown = resident() - before - sum(len(answer) for _, answer in answers)
        begun = time.monotonic()
        assert asked(address, "GET", "/", cookie=own[0])[0].status == 200
        assert time.monotonic() - begun < 20.0
    assert log == []
    assert grown < GROWTH
    statuses = {}
    for data, answer in answers:
        status = int(answer[9:12] or 0)
        statuses[status] = statuses.get(status, 0) + 1
        assert status < 500, (data[:400], answer[:400])
        for mark in (CANARY.encode(), b"Traceback", b'File "', b"root:x:", WORD.encode()):
            assert mark not in answer, (data[:400], answer[:4000])
    assert {200, 400, 404, 405} <= set(statuses), statuses
