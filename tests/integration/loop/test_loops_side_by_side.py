"""Several controllers at once, as processes: on one PostgreSQL store, and on a Ray cluster."""

import signal

import pytest

from cadenza.loop.store import JobStore
from tests.campaigns import nightly
from tests.e2e.commands import cadenza
from tests.integration.loop.command_line_runs import LITTLE, LoopCommands
from tests.integration.loop.job_harness import wait_for

#: Exit code of a command that must wait for another.
NOT_READY = 13


@pytest.fixture
def new_run(tmp_path):
    """Call it with an id and more lines of configuration; nothing of the run's jobs stays."""
    runs = []

    def new(run_id, more="", store=None):
        run = LoopCommands(tmp_path, LITTLE + more, run_id, store)
        runs.append(run)
        return run

    yield new
    for run in runs:
        run.kill_all()


def require_finished(run, store):
    row = store.get_run(run.run_id)
    assert (row["status"], row["stop_reason"]) == ("finished", "budget: max_cycles")
    assert row["lease_owner"] is None
    assert [one["blessed"] for one in store.checkpoints_for(run.run_id)] == [1]
    seqs = [event.seq for event in store.events.find(run.run_id)]
    assert seqs == list(range(1, run.events() + 1))
    wait_for(lambda: not run.hosts())  # the last one may still be ending
    assert run.commands() == []
    assert run.locked() == []


@nightly
def test_loops_share_one_store_and_a_killed_controller_is_replaced(new_run, postgres_url):
    runs = [new_run(name, f"seed: {n}\n", postgres_url) for n, name in enumerate("abc")]
    controllers = [run.start() for run in runs]
    victim, others = runs[0], controllers[1:]
    victim.hold_job()  # the run shall not end before its controller

    second = cadenza(*victim.words, cwd=victim.folder)
    assert second.code == NOT_READY
    assert "expected a free run, got one that process " in second.err
    assert "`cadenza loop stop`" in second.err
    controllers[0].process.kill()
    assert controllers[0].outcome(60.0).code == -signal.SIGKILL

    both = [victim.start(), victim.start()]
    wait_for(lambda: any(one.process.poll() is not None for one in both))
    victim.let_job_go_on()
    ends = [controller.outcome(400.0) for controller in both]
    assert sorted(end.code for end in ends) == [0, NOT_READY], [end.err for end in ends]
    for controller in others:
        end = controller.outcome(400.0)
        assert end.code == 0, end.err
    with JobStore(postgres_url) as store:
        for run in runs:
            require_finished(run, store)
        assert len({row["config_json"] for row in store.list_runs()}) == len(runs)
        assert {row["lease_epoch"] for row in store.list_runs()} == {1, 2}
    assert cadenza("loop", "lint", cwd=victim.folder).code == 0
