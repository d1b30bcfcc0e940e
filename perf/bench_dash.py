"""The dashboard with 1,000 runs and a million events, beside one run with ten events.

Task:     ten pages are open and live: five of the run with half of all events, four of other runs,
          one of the list. A controller tells of one event a round; a visitor opens the list, a page
          of any run, and the events of the large run, each with stylesheet and script.
Protocol: `cadenza dash` is one process, the open pages another, controller and visitor the third,
          on two cores. A page takes from connecting to its last byte; an update from the commit to
          its bytes at the last of the five pages, by the clock that all processes share. Where
          other work keeps the cores busy, the processor time of the server says more.
Aims:     a full page holds fifty runs, or two hundred events, where that of the small store holds
          one, or ten: at most ten times as long. A query that reads what is not shown would take
          hundreds of times. An update waits for the next look, at most 0.5 s, in either store: at
          most three times as long. Memory: at most twice.

Usage:  python -m perf --only dash
"""

import http.client
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread

import numpy as np
import psutil

from cadenza.loop.store.jobstore import JobStore
from perf.dash_store import LARGE, tell, write_store
from perf.timing import Row

RUNS, EVENTS, ROUNDS, OPEN, OF_LARGE = 1_000, 1_000_000, 60, 10, 5
_SMALL = "one run with ten events"
_PAGES = {
    "list of runs": "/",
    "page of a run": f"/runs/{LARGE}",
    "events": f"/runs/{LARGE}/events",
}
_AIMS = {"ms": 0.1, "s": 0.33, "MB": 0.5}


def rows() -> list[Row]:
    small = measured(runs=1, events=10)
    full = measured(runs=RUNS, events=EVENTS)
    units = {name: name.rpartition(", ")[2] for name in full}
    return [
        Row(
            name.rpartition(", ")[0],
            value,
            small[name],
            unit=units[name],
            aim=None if "p50" in name else _AIMS[units[name]],
            peer_name=_SMALL,
        )
        for name, value in full.items()
    ]


def measured(*, runs: int, events: int) -> dict[str, float]:
    """Return the figures of one store, by name and unit."""
    with TemporaryDirectory() as folder:
        workdir = Path(folder) / "runs"
        workdir.mkdir()
        write_store(workdir, runs=runs, events=events)
        with _server(workdir) as (port, process):
            before = process.memory_info().rss
            pages, updates = _look(workdir, port, runs)
            after = process.memory_info().rss
            worked = {name: _worked(process, port, path) for name, path in _PAGES.items()}
    figures: dict[str, float] = {}
    for name, seconds in pages.items():
        for percent in (50, 95):
            figures[f"{name}: p{percent}, ms"] = 1e3 * float(np.percentile(seconds, percent))
        figures[f"{name}: processor time of the server, ms"] = 1e3 * worked[name]
    for percent in (50, 95):
        figures[f"update, commit to bytes: p{percent}, s"] = float(np.percentile(updates, percent))
    figures["memory of the server at its start, MB"] = before / 1e6
    figures["memory of the server after it, MB"] = after / 1e6
    return figures


@contextmanager
def _server(workdir: Path) -> Generator[tuple[int, psutil.Process]]:
    command = [sys.executable, "-m", "cadenza", "dash", "--workdir", str(workdir), "--port", "0"]
    with subprocess.Popen(  # noqa: S603 -- our own command
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        said = server.stdout.readline() if server.stdout is not None else ""
        port = int(said.partition("127.0.0.1:")[2].partition("/")[0])
        try:
            yield port, psutil.Process(server.pid)
        finally:
            server.terminate()


def _look(workdir: Path, port: int, runs: int) -> tuple[dict[str, list[float]], list[float]]:
    """Return the seconds of each page, and of each update until the last of its pages has it."""
    names = [f"crossing-{number:04d}" for number in range(runs - 1)] or [LARGE]
    others = [f"/live/runs/{names[number % len(names)]}" for number in range(OPEN - OF_LARGE - 1)]
    with JobStore(workdir / "cadenza.db") as store:
        large = f"/live/runs/{LARGE}?after={store.events.last_seq(LARGE)}"
    open_pages = [*[large] * OF_LARGE, *others, "/live/runs"]
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    listeners = multiprocessing.get_context("spawn").Process(
        target=_listen, args=(port, open_pages, theirs)
    )
    listeners.start()
    ours.recv()
    rng = np.random.default_rng(0)
    pages: dict[str, list[float]] = {name: [] for name in _PAGES}
    told: list[float] = []
    with JobStore(workdir / "cadenza.db") as store:
        lease = store.leases.acquire(LARGE, "bench", ttl_s=3600.0, gone=lambda _: True)
        for ordinal in range(ROUNDS):
            tell(store, lease, ordinal)
            told.append(time.monotonic())
            any_run = {"page of a run": f"/runs/{rng.choice([*names, LARGE])}"}
            for name, path in (_PAGES | any_run).items():
                pages[name].append(_open(port, path))
            time.sleep(float(rng.uniform(0.3, 0.8)))
    ours.send(ROUNDS)
    heard = ours.recv()
    listeners.join()
    if any(len(heard.get(ordinal, ())) < OF_LARGE for ordinal in range(ROUNDS)):
        raise RuntimeError("expected every update on every page of the large run, got fewer.")
    return pages, [max(heard[ordinal]) - at for ordinal, at in enumerate(told)]


def _worked(process: psutil.Process, port: int, path: str) -> float:
    """Return the seconds that a server works on a page when no other is open."""
    before = sum(process.cpu_times()[:2])
    for _ in range(ROUNDS):
        _open(port, path)
    return (sum(process.cpu_times()[:2]) - before) / ROUNDS


def _open(port: int, path: str) -> float:
    """Return the seconds that a visitor waits for a page with its stylesheet and script."""
    begun = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60.0)
    for one in (path, "/static/style.css", "/static/app.js"):
        connection.request("GET", one)
        answer = connection.getresponse()
        answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{one}: expected a page, got status {answer.status}.")
    connection.close()
    return time.perf_counter() - begun


def _listen(port: int, paths: list[str], pipe: Connection) -> None:
    """Keep pages open, and return when each update of the large run reached each of its pages."""
    heard: dict[int, list[float]] = {}
    streams = []
    for path in paths:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60.0)
        connection.request("GET", path)
        streams.append(connection.getresponse())
    for stream in streams:
        while not stream.readline().startswith(b"event: state"):
            pass
    threads = [Thread(target=_hear, args=(one, heard), daemon=True) for one in streams]
    for thread in threads:
        thread.start()
    pipe.send("each has its first state")
    rounds = pipe.recv()
    deadline = time.monotonic() + 30.0
    while sum(map(len, heard.values())) < rounds * OF_LARGE and time.monotonic() < deadline:
        time.sleep(0.05)
    pipe.send(heard)


def _hear(stream: http.client.HTTPResponse, heard: dict[int, list[float]]) -> None:
    while line := stream.readline():
        if b'\\"marked\\": ' in line:
            now = time.monotonic()
            for part in line.split(b'\\"marked\\": ')[1:]:
                heard.setdefault(int(part.partition(b"}")[0]), []).append(now)
