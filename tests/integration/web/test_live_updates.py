"""Live updates from a server that really listens."""

import asyncio
import http.client
import json
import threading
import time

import pytest

from cadenza.core.errors import StorageError
from cadenza.loop.store import JobStore
from cadenza.web import live
from cadenza.web.live import Feed, Growth, Hub
from tests.dashboards import furnished, serving
from tests.loop_runs import RUN, event


class Listener:
    """A browser that listens to one address; without it in time, the test fails."""

    def __init__(self, address, path, last=None):
        self.connection = http.client.HTTPConnection(*address, timeout=30.0)
        self.connection.request("GET", path, headers={"last-event-id": last} if last else {})
        self.response = self.connection.getresponse()
        assert self.response.status == 200
        assert self.response.headers["content-type"].startswith("text/event-stream")

    def next(self, kind):
        """Return the data of the next message of a kind, and its id."""
        name, number = "", ""
        while True:
            word, _, value = self.response.readline().decode().rstrip("\n").partition(": ")
            if word == "event":
                name = value
            elif word == "id":
                number = value
            elif word == "data" and name == kind:
                return json.loads(value), number

    def close(self):
        self.connection.close()


@pytest.fixture
def address(tmp_path):
    with serving(*furnished(tmp_path)) as found:
        yield found


def tell(tmp_path, ordinal):
    with JobStore(tmp_path / "runs" / "cadenza.db") as store:
        lease = store.leases.acquire(RUN, "someone", ttl_s=60.0, gone=lambda _: True)
        store.events.append(lease, [event("train", "report", 1, {"n": ordinal}, ordinal)])


def test_events_reach_all_who_look_and_each_once(address, tmp_path):
    listeners = [Listener(address, f"/live/runs/{RUN}?after={after}") for after in (2, 2, 0)]
    first, _ = listeners[2].next("events")
    assert [one["seq"] for one in first] == [1, 2]
    for ordinal in range(2):
        tell(tmp_path, ordinal)
        for listener in listeners:
            told, number = listener.next("events")
            assert [one["seq"] for one in told] == [3 + ordinal]
            assert number == str(3 + ordinal)
    for listener in listeners:
        listener.close()


def test_who_comes_back_gets_what_was_missed(address, tmp_path):
    listener = Listener(address, f"/live/runs/{RUN}?after=2")
    listener.close()
    for ordinal in range(3):
        tell(tmp_path, ordinal)
    again = Listener(address, f"/live/runs/{RUN}?after=0", last="3")
    told, _ = again.next("events")
    assert [one["seq"] for one in told] == [4, 5]
    again.close()


def test_a_changed_run_is_told_with_its_part_of_the_page(address, tmp_path):
    listener = Listener(address, f"/live/runs/{RUN}")
    state, _ = listener.next("state")
    assert "60.0%" in state["live"]
    assert state["actions"] == "running True"
    with JobStore(tmp_path / "runs" / "cadenza.db") as store:
        store.finish_run(RUN, "failed", "no room on the disk")
    while "no room on the disk" not in state["live"]:
        state, _ = listener.next("state")
    assert state["actions"].startswith("failed")
    listener.close()


def test_a_log_grows_from_where_its_page_ended(address, tmp_path):
    log = tmp_path / "runs" / RUN / "cycle_1" / "train.log"
    listener = Listener(address, f"/live/runs/{RUN}/log?name=cycle_1/train.log&after=7")
    with log.open("a") as file:
        file.write("step 2 \x1b[1m\n")
    assert listener.next("log")[0] == "step 2 \N{REPLACEMENT CHARACTER}[1m\n"
    listener.close()


def test_the_list_of_runs_tells_of_new_ones(address, tmp_path):
    listener = Listener(address, "/live/runs")
    rows, _ = listener.next("state")
    assert set(rows["rows"]) == {RUN}
    with JobStore(tmp_path / "runs" / "cadenza.db") as store:
        store.create_run("second", "{}")
    rows, _ = listener.next("state")
    assert set(rows["rows"]) == {"second"}
    listener.close()


class Counter(Feed):
    """Numbers that grow whenever somebody reads, and are counted."""

    def __init__(self):
        self.reads = 0

    def read(self, position, /):
        self.reads += 1
        return Growth("numbers", list(range(position + 1, position + 3)), position)


async def _heard(messages, count):
    found = []
    async for message in messages:
        if "event: numbers" in message:
            found += json.loads(message.partition("data: ")[2])
        if len(found) >= count:
            return found
    return found


def test_many_who_look_cost_as_many_reads_as_one(monkeypatch):
    monkeypatch.setattr(live, "_ROUNDS", 0)
    monkeypatch.setattr(live, "PAUSE_S", 0.01)

    async def look():
        hub, feed = Hub(), Counter()
        streams = [hub.response("n", lambda: feed, position=0).body_iterator for _ in range(50)]
        heard = await asyncio.gather(*(_heard(stream, 20) for stream in streams))
        assert hub.listeners == 50
        for stream in streams:
            await stream.aclose()
        assert hub.listeners == 0
        return heard, feed.reads

    heard, reads = asyncio.run(look())
    assert all(one == list(range(1, 21)) for one in heard)
    assert reads <= 15


class Growing(Feed):
    """Grows by one item while the server asks where its end is."""

    def __init__(self):
        self.items = ["old"]
        self.was_read = threading.Event()

    def end(self):
        self.was_read.wait(0.3)  # whoever looks for missed items now finds none
        self.items = ["old", "new"]
        return len(self.items)

    def read(self, position, /):
        self.was_read.set()
        new = self.items[position:]
        return Growth("numbers", new, position) if new else None


def test_what_comes_while_a_browser_connects_is_not_missed():
    async def look():
        stream = Hub().response("n", Growing, position=1).body_iterator
        heard = await asyncio.wait_for(_heard(stream, 1), 10.0)
        await stream.aclose()
        return heard

    assert asyncio.run(look()) == ["new"]


def test_who_takes_nothing_is_sent_away_and_costs_no_memory(monkeypatch):
    monkeypatch.setattr(live, "_ROUNDS", 0)
    monkeypatch.setattr(live, "PAUSE_S", 0.0)

    async def look():
        hub = Hub()
        stream = hub.response("n", Counter, position=0).body_iterator
        await anext(stream)
        [channel] = hub._channels.values()
        [queue] = channel.listeners
        deadline = time.monotonic() + 30.0
        while queue.qsize() != 1 or queue._queue[0] is not None:
            assert queue.qsize() <= 32
            assert time.monotonic() < deadline
            await asyncio.sleep(0.001)
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        assert hub.listeners == 0

    asyncio.run(look())


class Away(Feed):
    """A feed whose store does not answer."""

    def read(self, position, /):
        raise StorageError("away")


@pytest.mark.parametrize("lasts_s", [0.0, 60.0])
def test_a_stream_ends_when_the_store_is_away_or_its_time_is_over(monkeypatch, lasts_s):
    monkeypatch.setattr(live, "_LASTS_S", lasts_s)
    feed = Away if lasts_s else Feed

    async def look():
        hub = Hub()
        stream = hub.response("a", feed, position=0).body_iterator
        assert [message async for message in stream] == ["retry: 2000\n\n"]
        assert hub.listeners == 0

    asyncio.run(asyncio.wait_for(look(), 30.0))


class Broken(Feed):
    """A feed with a mistake in it."""

    def changes(self):
        raise RuntimeError("a mistake")


def test_a_feed_that_fails_sends_its_listeners_away_and_the_next_gets_a_new_one():
    made = []

    def make():
        made.append(Broken())
        return made[-1]

    async def look():
        hub = Hub()
        for _ in range(2):
            streams = [hub.response("b", make, position=0).body_iterator for _ in range(2)]
            heard = await asyncio.gather(*(_heard(stream, 1) for stream in streams))
            assert heard == [[], []]  # both ended
            assert hub.listeners == 0

    asyncio.run(asyncio.wait_for(look(), 10.0))
    assert len(made) == 2


def test_there_is_an_end_to_how_many_may_look(monkeypatch):
    monkeypatch.setattr(live, "MAX_LISTENERS", 0)
    assert Hub().response("n", Counter, position=0).status_code == 503
