"""Several loops at once against one store; each run belongs to one controller."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from cadenza.loop.errors import LeaseHeldError
from cadenza.loop.store import JobStore
from tests.integration.loop.loop_harness import Loop, quick_folder
from tests.loop_fakes import FakeProposer, FakeStack

RUNS = ("a", "b", "c")
RATES = (0.5, 0.9)


@pytest.fixture
def workdir():
    folder = quick_folder()
    yield folder
    shutil.rmtree(folder)


class Together(FakeProposer):
    """Begins every cycle when all loops are there."""

    def __init__(self, barrier):
        super().__init__()
        self.barrier = barrier

    def propose(self, cycle, last_report):
        self.barrier.wait(timeout=800)
        return super().propose(cycle, last_report)


def loop_of(store, workdir, run_id, proposer=None):
    return Loop(
        store, workdir, FakeStack(RATES), run_id=run_id, proposer=proposer,
        budgets={"max_cycles": len(RATES)}, improve={"enabled": True, "episodes": 4},
    )  # fmt: skip


def test_loops_run_at_once_against_one_store_as_if_alone(store_url, workdir):
    barrier = Barrier(len(RUNS))

    def work(run_id):
        with JobStore(store_url) as store:
            loop = loop_of(store, workdir, run_id, Together(barrier))
            return loop.run(), loop.events()

    with ThreadPoolExecutor(len(RUNS)) as pool:
        results = list(pool.map(work, RUNS))
    with JobStore(store_url) as store:
        alone = loop_of(store, workdir, "alone")
        summary, events = alone.run(), alone.events()
        for run_id, (made, told) in zip(RUNS, results, strict=True):
            assert (made.run_id, made.decisions) == (run_id, summary.decisions)
            assert told == events
            seqs = [event.seq for event in store.events.after(run_id, 0)]
            assert seqs == list(range(1, len(seqs) + 1))
            row = store.blessed_checkpoint(run_id)
            assert row["path"].startswith(str(workdir / run_id))
            assert store.get_run(run_id)["status"] == "finished"


def test_second_controller_of_a_run_is_refused_while_the_first_works(store_url, workdir):
    refused = []

    class Rival(FakeProposer):
        def propose(self, cycle, last_report):
            with JobStore(store_url) as other:
                rival = loop_of(other, workdir, "a")
                with pytest.raises(LeaseHeldError, match="works on for another"):
                    rival.run()
                refused.append(rival.stack.commands)
            return super().propose(cycle, last_report)

    with JobStore(store_url) as store:
        summary = loop_of(store, workdir, "a", Rival()).run()
    assert summary.decisions == ["promote", "promote"]
    assert refused == [[], []]
