"""Whatever controllers do in whatever order: no stale write counts, one policy is blessed."""

import shutil
import tempfile
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from cadenza.loop.contracts.records import SeedRange
from cadenza.loop.errors import (
    RecordConflictError,
    StaleLeaseError,
    StaleStateError,
    UnknownRowError,
)
from cadenza.loop.store import JobStore, changes
from cadenza.loop.store.rows import StoredEvent

RUNS = ("a", "b")


def event(step, ordinal, cycle):
    return StoredEvent(
        step_key=step, ordinal=ordinal, stage="s", kind="k", cycle=cycle, payload="{}", ts=0.0,
        mono=0.0,
    )  # fmt: skip


class Controllers(RuleBasedStateMachine):
    """Controllers take runs from one another and commit from old and new knowledge.

    The model is a few dictionaries: the state, events and blessed policy of each run.
    """

    leases = Bundle("leases")
    versions = Bundle("versions")
    checkpoints = Bundle("checkpoints")

    @initialize()
    def create(self):
        self.folder = tempfile.TemporaryDirectory()
        path = Path(self.folder.name) / "cadenza.db"
        shutil.copyfile(template(), path)
        self.store = JobStore(path)
        self.cycle = dict.fromkeys(RUNS, 0)
        self.version = dict.fromkeys(RUNS, 0)
        self.lease = dict.fromkeys(RUNS)
        self.events = {run: [] for run in RUNS}
        self.owned = {run: [] for run in RUNS}
        self.blessed = dict.fromkeys(RUNS)
        for run in RUNS:
            self.store.create_run(run, "{}")

    def teardown(self):
        if hasattr(self, "store"):
            self.store.close()
            self.folder.cleanup()

    @rule(target=leases, run=st.sampled_from(RUNS), owner=st.sampled_from("xyz"))
    def take_over(self, run, owner):
        lease = self.store.leases.acquire(run, owner, ttl_s=1e6, gone=lambda _: True)
        self.lease[run] = lease
        return lease

    @rule(lease=leases)
    def release(self, lease):
        self.store.leases.release(lease)
        if lease == self.lease[lease.run_id]:
            self.lease[lease.run_id] = None

    @rule(target=versions, run=st.sampled_from(RUNS))
    def look(self, run):
        return self.store.load_state(run)[1]

    @rule(target=checkpoints, run=st.sampled_from(RUNS))
    def add_checkpoint(self, run):
        number = self.store.add_checkpoint(run, 0, "bc", "/p")
        self.owned[run].append(number)
        return number

    @rule(run=st.sampled_from(RUNS), number=checkpoints)
    def bless(self, run, number):
        if number in self.owned[run]:
            self.store.bless(run, number)
            self.blessed[run] = number
        else:
            with pytest.raises(UnknownRowError):
                self.store.bless(run, number)

    @rule(
        lease=leases,
        version=versions,
        number=checkpoints,
        place=st.tuples(st.sampled_from("pq"), st.integers(0, 2)),
        cycle=st.integers(0, 99),
    )
    def commit(self, lease, version, number, place, cycle):
        run = lease.run_id
        state = self.store.load_state(run)[0].model_copy(update={"cycle": cycle})
        change = {"events": [event(*place, cycle)], "rows": [changes.bless(number)]}
        refusal = None
        if lease != self.lease[run]:
            refusal = StaleLeaseError
        elif version != self.version[run]:
            refusal = StaleStateError
        elif number not in self.owned[run]:
            refusal = UnknownRowError
        if refusal is not None:
            with pytest.raises(refusal):
                self.store.commit(lease, version, state, **change)
            return
        self.store.commit(lease, version, state, **change)
        self.version[run] += 1
        self.cycle[run] = cycle
        self.blessed[run] = number
        if place not in [recorded for recorded, _ in self.events[run]]:
            self.events[run].append((place, cycle))

    @invariant()
    def store_is_the_model(self):
        if not hasattr(self, "store"):
            return
        for run in RUNS:
            state, version = self.store.load_state(run)
            assert (state.cycle, version) == (self.cycle[run], self.version[run])
            rows = self.store.events.find(run)
            assert [row.seq for row in rows] == list(range(1, len(rows) + 1))
            found = [((row.step_key, row.ordinal), row.cycle) for row in rows]
            assert found == self.events[run]
            flags = {row["id"]: row["blessed"] for row in self.store.checkpoints_for(run)}
            assert [number for number, flag in flags.items() if flag] == (
                [] if self.blessed[run] is None else [self.blessed[run]]
            )


Controllers.TestCase.settings = settings(max_examples=25, stateful_step_count=15)
TestControllers = Controllers.TestCase

_TEMPLATES = []


def template():
    """Return a store without runs, made once."""
    if not _TEMPLATES:
        folder = tempfile.TemporaryDirectory()
        JobStore(Path(folder.name) / "cadenza.db").close()
        _TEMPLATES.append(folder)
    return Path(_TEMPLATES[0].name) / "cadenza.db"


ranges = st.builds(SeedRange, start=st.integers(0, 60), count=st.integers(1, 15))


@settings(max_examples=30)
@given(wanted=st.lists(ranges, max_size=8))
def test_reserved_seeds_never_overlap(wanted):
    with tempfile.TemporaryDirectory() as folder:
        path = shutil.copyfile(template(), Path(folder) / "cadenza.db")
        with JobStore(path) as store:
            store.create_run("run", "{}")
            lease = store.leases.acquire("run", "x", ttl_s=60.0)
            taken = set()
            for cycle, seeds in enumerate(wanted):
                numbers = set(range(seeds.start, seeds.start + seeds.count))
                change = changes.reserve_seeds(cycle, "compare", 0, seeds)
                if taken & numbers:
                    with pytest.raises(RecordConflictError):
                        store.apply(lease, change)
                else:
                    store.apply(lease, change)
                    taken |= numbers
            reserved = store.seed_ranges("run").values()
            assert sum(seeds.count for seeds in reserved) == len(taken)
