"""Controllers that die at any write: another one finishes, and nothing shows but attempts."""

import os
import shutil
from contextlib import contextmanager

import pytest

from cadenza.loop.errors import StoreUnavailableError
from cadenza.loop.events.bus import LogFile
from cadenza.loop.store.database import Database
from tests.campaigns import size
from tests.integration.loop.loop_harness import Loop, outcome_of, store_in
from tests.integration.loop.what_is_left import differences
from tests.loop_fakes import FakeKnowledge, FakeStack


class Crash(BaseException):
    """The process died: nothing catches it, and nothing is written any more."""


class Fate:
    """Dies at the ``at``-th point of no return; None never does.

    Attributes:
        points: Points that were passed or died at.
    """

    def __init__(self, at=None):
        self.at = at
        self.points = 0
        self.dead = False

    def pass_point(self):
        if self.dead:
            raise Crash
        self.points += 1
        if self.points == self.at:
            self.dead = True
            raise Crash


@contextmanager
def mortal(monkeypatch, fate):
    """Let every write to store, log and pages, and every job, be a point to die at."""
    write, append = Database.write, LogFile.append
    call, ingest = FakeStack.__call__, FakeKnowledge.ingest

    @contextmanager
    def mortal_write(self, run=None):
        fate.pass_point()
        with write(self, run) as connection:
            yield connection

    def mortal_append(self, lines):
        try:
            fate.pass_point()
        except Crash:
            if not fate.dead or fate.points == fate.at:
                os.pwrite(self._descriptor, lines[: len(lines) // 2], self._length)
            raise
        append(self, lines)

    def mortal_call(self, cmd, log_path):
        fate.pass_point()
        result = call(self, cmd, log_path)
        fate.pass_point()
        return result

    def mortal_ingest(self, **arguments):
        pages = ingest(self, **arguments)
        fate.pass_point()
        return pages

    with monkeypatch.context() as patch:
        patch.setattr(Database, "write", mortal_write)
        patch.setattr(LogFile, "append", mortal_append)
        patch.setattr(FakeStack, "__call__", mortal_call)
        patch.setattr(FakeKnowledge, "ingest", mortal_ingest)
        yield


def new_loop(store, workdir):
    """Two cycles with everything: looks, adaptation, harvests, a merge, promotions."""
    stack = FakeStack([0.5, 0.75])
    stack.rates[1, "adapt"] = 0.8
    return Loop(
        store,
        workdir,
        stack,
        pages=True,
        budgets={"max_cycles": 2},
        eval={"n_episodes": 10, "max_episodes": 40},
        improve={"enabled": True, "adapt_steps": 3, "episodes": 4},
    )


def bury(store):
    """Free the run as the death of a real process does."""
    leases = store.leases
    leases.release(leases.acquire("run", "undertaker", ttl_s=9.0, gone=lambda _: True))


@pytest.fixture
def live(monkeypatch, sqlite_template, tmp_path_factory):
    """Call it with the points to die at; returns what the run left and the points it passed."""

    def run(*deaths):
        workdir = tmp_path_factory.mktemp("live")
        with store_in(workdir, sqlite_template) as store:
            for at in deaths:
                with mortal(monkeypatch, Fate(at)), pytest.raises(Crash):
                    new_loop(store, workdir).run()
                bury(store)
            last = Fate()
            with mortal(monkeypatch, last):
                loop = new_loop(store, workdir)
                loop.run()
            left = outcome_of(loop, workdir)
        shutil.rmtree(workdir)
        return left, last.points

    return run


@pytest.mark.timeout(1800)
def test_run_that_dies_at_any_point_ends_like_an_undisturbed_one(live):
    undisturbed, points = live()
    kinds = {event["kind"] for event in undisturbed["events.jsonl"]}
    assert points > 150
    assert [row["decision"] for row in undisturbed["table cycles"]] == ["promote", "promote"]
    assert kinds >= {"candidate_selected", "undecided", "rollouts_merged", "knowledge_updated"}
    numbers = [event["seq"] for event in undisturbed["events.jsonl"]]
    assert numbers == list(range(1, len(undisturbed["table events"]) + 1))
    for at in range(3, points + 1, size(43, 1)):
        left, _ = live(at)
        assert differences(undisturbed, left) == [], f"died at point {at} of {points}"


class Outage:
    """A store that is away at its ``at``-th write of the run, and ``length`` times in a row.

    Attributes:
        writes: Writes so far.
        met: Writes that the store did not answer.
    """

    def __init__(self, at, *, heard, length=1):
        self.writes = 0
        self.met = 0
        self._at = range(at, at + length)
        self._heard = heard

    @property
    def lasts(self):
        """Whether the store is away when the run ends."""
        return self.writes in self._at

    @contextmanager
    def write(self, write, database):
        self.writes += 1
        away = self.writes in self._at
        self.met += away
        if away and not self._heard:
            raise StoreUnavailableError("the server restarts")
        with write(database) as connection:
            yield connection
        if away:
            raise StoreUnavailableError("the answer is lost")


@pytest.fixture
def with_outage(monkeypatch, sqlite_template, tmp_path_factory):
    """Call it with an outage; returns what the run left that met it."""

    def run(outage):
        workdir, write = tmp_path_factory.mktemp("outage"), Database.write
        with store_in(workdir, sqlite_template) as store:
            with monkeypatch.context() as patch:
                patch.setattr(
                    Database,
                    "write",
                    lambda self, run=None: outage.write(lambda it: write(it, run), self),
                )
                loop = new_loop(store, workdir)
                loop.run()
            if outage.lasts:  # whoever comes next marks the last events and frees the run
                bury(store)
                loop = new_loop(store, workdir)
                loop.run()
            left = outcome_of(loop, workdir)
        shutil.rmtree(workdir)
        return left

    return run


#: Writes before the first step: of the run, its lease and its status; a controller that finds the
#: store away then says so at once.
BEGINNING = 4


@pytest.mark.parametrize("heard", [True, False])
def test_outages_of_the_store_end_no_run_and_show_nowhere(with_outage, heard):
    undisturbed = with_outage(nothing := Outage(0, heard=True))
    met = 0
    for at in range(BEGINNING + 1, nothing.writes + 1, size(43, 1)):
        outage = Outage(at, heard=heard, length=3)
        assert with_outage(outage) == undisturbed, f"away at write {at} of {nothing.writes}"
        met += outage.met
    assert met > 5  # some of the three in a row may lie behind the end


def test_run_that_dies_again_and_again_ends_like_an_undisturbed_one(live):
    undisturbed, _ = live()
    left, _ = live(*range(5, 45, size(8, 4)))
    assert differences(undisturbed, left) == []
