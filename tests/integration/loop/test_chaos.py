"""The loop as people run it, killed at random again and again: what it leaves shows nothing."""

import signal
import time

import numpy as np
import pytest

from tests.campaigns import size
from tests.integration.loop.command_line_runs import (
    EVERYTHING,
    LITTLE,
    LoopCommands,
    kill,
    wait_for,
)
from tests.integration.loop.what_is_left import differences, what_is_left

#: Whole runs on a busy machine.
pytestmark = pytest.mark.timeout(1800)

KILLS, STOPS = size(5, 50), size(1, 3)
#: One cycle of three jobs shows a loss after every kind of kill; the full run also harvests, merges
#: and extends comparisons.
CONFIG = size(LITTLE, EVERYTHING)
#: What has happened, and what must have been survived.
KINDS = size({"decision"}, {"undecided", "rollouts_merged", "decision"})
SURVIVED = size({"resumed"}, {"resumed", "adopted", "interrupted", "stopped"})
#: Exit code of a controller that was stopped by SIGTERM once it is at work.
STOPPED_BY_TERM = 143
#: Last events, at which strikes come without a pause, so that the run does not end before them.
HURRIED = size(9, 15)
#: Those of the last two jobs and of what follows them. The strikes there are chosen: one at the
#: start of the last job, and one after it now and then, which the run may outrun.
LAST_EVENTS = 8
#: What is killed, with its share.
VICTIMS = {
    "controller": 0.4,
    "host": 0.2,
    "command": 0.2,
    "controller and host": 0.1,
    "everything": 0.1,
}
#: In a list of victims: SIGTERM to the controller, which ends the job before it leaves.
STOP = "stop"


class Chaos:
    """Strikes processes of a run at moments that a seed chooses, spread over its events.

    Attributes:
        struck: Moments and victims in order.
    """

    def __init__(self, run, rng, plan, hurried):
        """Take the moments and victims, in order, and the moment from which there is a hurry."""
        self.struck = []
        self._run = run
        self._rng = rng
        self._plan = plan
        self._hurried = hurried
        self._controller = None
        self._signs = 0

    def wreak(self):
        """Strike until every moment or the run is over; it is then left without a controller."""
        try:
            for moment, victim in self._plan:
                hurried = moment >= self._hurried
                # while the controller still reads what is there
                early = not hurried and self._rng.uniform() < 0.2
                if self._controller is None:
                    self._start()
                if not early:
                    self._wait(moment)
                if not hurried:
                    time.sleep(self._rng.uniform(0.0, 0.5 if early else 1.0))
                if not self._strike(victim):
                    return
                self.struck.append((moment, victim))
        finally:
            if self._controller is not None:
                self._controller.kill()

    def _start(self):
        self._signs = self._run.signs_of_life()
        self._controller = self._run.start(fresh=bool(self._rng.uniform() < 0.1))

    def _wait(self, moment):
        """Wait until the run has come to ``moment`` and its controller is at work."""

        def has_come():
            at_work = self._run.signs_of_life() > self._signs
            return self._run.events() >= moment and at_work

        come = wait_for(lambda: has_come() or not self._controller.lives(), seconds=800.0)
        assert come, f"event {moment} did not come"

    def _strike(self, victim):
        """Strike until the victim is hit; if it is a job, as soon as there is one.

        Returns:
            Whether it was hit; if not, the run came to its end before.
        """
        while self._controller is not None and self._controller.lives():
            if self._hits(victim):
                return True
            time.sleep(0.01)
        if self._controller is not None:
            self._ends_by(0)
        return False

    def _hits(self, victim):
        run, controller = self._run, self._controller
        if victim in ("host", "controller and host", "everything") and not run.hosts():
            return False
        if victim == "host":
            return _kill_each(run.hosts())
        if victim == "command":
            return _kill_each(run.commands())
        if victim == STOP:
            controller.process.send_signal(signal.SIGTERM)
            hit = self._ends_by(-signal.SIGTERM, STOPPED_BY_TERM)
        else:
            controller.kill()
            hit = self._ends_by(-signal.SIGKILL)
        if hit and victim in ("controller and host", "everything"):
            _kill_each(run.hosts())
        if hit and victim == "everything":
            _kill_each(run.commands())
        return hit

    def _ends_by(self, *codes):
        """Return whether the controller ended as it was hit, not well before by itself."""
        end = self._controller.outcome(300.0)
        self._controller = None
        assert end.code in (0, *codes), end
        return end.code != 0


def _kill_each(pids):
    return bool([pid for pid in pids if kill(pid)])


def left_by_a_calm_run(folder, config):
    run = LoopCommands(folder, config, "chaos")
    run.finish()
    return what_is_left(run.folder, run.run_id)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What a run leaves that nobody disturbs."""
    return left_by_a_calm_run(tmp_path_factory.mktemp("undisturbed") / "run", CONFIG)


@pytest.fixture
def new_run(tmp_path):
    """Call it with a name for a run to be disturbed; nothing of its jobs stays."""
    runs = []

    def new(name):
        runs.append(LoopCommands(tmp_path / name, CONFIG, "chaos"))
        return runs[-1]

    yield new
    for run in runs:
        run.kill_all()


@pytest.mark.slow
def test_run_killed_again_and_again_leaves_what_an_undisturbed_one_leaves(undisturbed, new_run):
    events = undisturbed["events.jsonl"]
    assert {event["kind"] for event in events} >= {*KINDS, "run_finished"}
    assert undisturbed["table cycles"][0]["decision"] == "promote"
    assert len(undisturbed["pages"]) > 1
    rng = np.random.default_rng(20)
    last = len(events) - LAST_EVENTS
    moments = sorted([0, *rng.integers(0, last, KILLS + STOPS - 1)])
    more = rng.choice([*VICTIMS], KILLS - len(VICTIMS), p=[*VICTIMS.values()])
    kills = [*VICTIMS, *more]
    victims = rng.permutation([*kills, *[STOP] * STOPS])
    last_job = max(event["seq"] for event in events if event["kind"] == "job_started")
    end = [(last_job, "everything"), *((last_job + n, "controller") for n in (1, 3, 5))]
    plan = [*zip(moments, victims, strict=True), *end]
    for name in ("disturbed", "disturbed again", "disturbed a third time"):
        disturbed = new_run(name)
        chaos = Chaos(disturbed, rng, plan, hurried=len(events) - HURRIED)
        chaos.wreak()
        disturbed.finish()
        assert differences(undisturbed, what_is_left(disturbed.folder, disturbed.run_id)) == []
        if len(chaos.struck) > KILLS + STOPS:
            break  # else this process stood still for so long that the run got ahead of it
    assert len(chaos.struck) > KILLS + STOPS
    assert chaos.struck[KILLS + STOPS] == end[0]
    assert {victim for _, victim in chaos.struck} == {*VICTIMS, STOP}
    assert disturbed.incidents() >= SURVIVED
    assert wait_for(lambda: not disturbed.hosts(), seconds=800.0)  # the last may still be ending
    assert disturbed.commands() == []
    assert disturbed.locked() == []


@pytest.mark.slow
def test_run_of_another_seed_differs_in_much(undisturbed, tmp_path):
    other = left_by_a_calm_run(tmp_path / "other", f"{CONFIG}seed: 1\n")
    sections = {line.partition("[")[0] for line in differences(undisturbed, other)}
    assert sections >= {"table events", "table seed_ranges", "blessed policies"}
