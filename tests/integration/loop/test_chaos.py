"""The loop as people run it, killed again and again: what it leaves shows nothing.

Each strike falls into a job: `test_controller_crashes` has the writes between them, and
`test_jobs_survive_kills` the kills of controller, host and command of one job.
"""

import signal
import time

import numpy as np
import pytest

from tests.campaigns import nightly
from tests.integration.loop.command_line_runs import EVERYTHING, LoopCommands, kill
from tests.integration.loop.job_harness import wait_for
from tests.integration.loop.what_is_left import differences, what_is_left

#: Whole runs on a busy machine.
pytestmark = [nightly, pytest.mark.slow, pytest.mark.timeout(1800)]

#: SIGTERM to the controller, which ends the job before it leaves.
STOP = "stop"
#: What is struck at least once, and how many times more at random.
VICTIMS = ["controller", "host", "command", "controller and host", STOP, "everything"]
MORE = 44
#: What has happened, and what must have been survived.
KINDS = {"undecided", "rollouts_merged", "decision"}
SURVIVED = {"resumed", "adopted", "interrupted", "stopped"}
#: Exit code of a controller that was stopped by SIGTERM once it is at work.
STOPPED_BY_TERM = 143


class Chaos:
    """Strikes processes of a run, whose job stands still until a controller is back."""

    def __init__(self, run):
        self._run = run
        self._controller = None

    def strike(self, victim, moment, delay_s):
        """Strike the job at work ``delay_s`` after the run has come to the event ``moment``."""
        run = self._run
        if self._controller is None:
            before = run.signs_of_life()
            self._controller = run.start()
            self._wait(lambda: run.signs_of_life() > before)
        run.let_job_go_on()
        self._wait(lambda: run.events() >= moment)
        time.sleep(delay_s)
        run.hold_job()
        if victim == STOP:
            self._controller.process.send_signal(signal.SIGTERM)
            self._ends_by(-signal.SIGTERM, STOPPED_BY_TERM)
        elif victim not in ("host", "command"):
            self._controller.process.kill()
            self._ends_by(-signal.SIGKILL)
        if victim in ("host", "controller and host", "everything"):
            _kill_each(run.hosts())
        if victim in ("command", "everything"):
            _kill_each(run.commands())

    def end(self):
        """Let the last job go on, and end the run."""
        if self._controller is not None:
            self._controller.process.kill()
        self._run.let_job_go_on()
        self._run.finish()

    def _wait(self, condition):
        ended = self._controller.process.poll
        wait_for(lambda: condition() or ended() is not None)
        assert condition()

    def _ends_by(self, *codes):
        end = self._controller.outcome(300.0)
        self._controller = None
        assert end.code in codes, end


def _kill_each(pids):
    for pid in pids:
        kill(pid)


def left_by_a_calm_run(folder, config):
    run = LoopCommands(folder, config, "chaos")
    run.finish()
    return what_is_left(run.folder, run.run_id)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What a run leaves that nobody disturbs."""
    return left_by_a_calm_run(tmp_path_factory.mktemp("undisturbed") / "run", EVERYTHING)


@pytest.fixture
def disturbed(tmp_path):
    """A run to be disturbed; nothing of its jobs stays."""
    run = LoopCommands(tmp_path / "disturbed", EVERYTHING, "chaos")
    yield run
    run.kill_all()


def test_run_killed_again_and_again_leaves_what_an_undisturbed_one_leaves(undisturbed, disturbed):
    events = undisturbed["events.jsonl"]
    assert {event["kind"] for event in events} >= {*KINDS, "run_finished"}
    assert undisturbed["table cycles"][0]["decision"] == "promote"
    assert len(undisturbed["pages"]) > 1
    rng = np.random.default_rng(20)
    *starts, last = (event["seq"] for event in events if event["kind"] == "job_started")
    victims = [*rng.permutation([*VICTIMS[:-1], *rng.choice(VICTIMS, MORE)]), VICTIMS[-1]]
    moments = [*np.sort(rng.choice(starts, len(victims) - 1)), last]
    chaos = Chaos(disturbed)
    for victim, moment in zip(victims, moments, strict=True):
        chaos.strike(victim, moment, 0.0 if moment == last else rng.uniform(0.0, 0.5))
    chaos.end()
    assert differences(undisturbed, what_is_left(disturbed.folder, disturbed.run_id)) == []
    assert disturbed.incidents() >= SURVIVED
    wait_for(lambda: not disturbed.hosts())  # the last may still be ending
    assert disturbed.commands() == []
    assert disturbed.locked() == []


def test_run_of_another_seed_differs_in_much(undisturbed, tmp_path):
    other = left_by_a_calm_run(tmp_path / "other", f"{EVERYTHING}seed: 1\n")
    lines = differences(undisturbed, other)
    sections = {line.partition(":")[0].partition("[")[0] for line in lines}
    assert sections >= {"table events", "table seed_ranges", "blessed policies"}
