"""Adds a task to LeRobot's environment, as a package installed there would.

Python imports this file when it starts with this folder in ``PYTHONPATH``. Where there is no PushT,
as in this project's own environment, it does nothing.

With ``NEAR_GOAL_HOLDS_AT=<name>`` a program there holds itself, as by Ctrl-Z, as soon as it has
made a link of that name, so that a test may kill it then, however slow or fast the machine is.
"""

import importlib.util
import os
import signal
import sys


def hold_after_link(name):
    coming = there = False

    def look(event, arguments):
        nonlocal coming, there
        if there:
            return
        if coming:  # the first event after the link was made
            there = True
            os.kill(os.getpid(), signal.SIGSTOP)
        elif event == "os.symlink":
            coming = os.fsdecode(arguments[1]).rpartition("/")[2] == name

    sys.addaudithook(look)


if importlib.util.find_spec("gym_pusht") is not None:
    import gymnasium

    gymnasium.register(
        id="gym_pusht/NearPushT-v0", entry_point="near_pusht:NearPushTEnv", max_episode_steps=300
    )
    if "NEAR_GOAL_HOLDS_AT" in os.environ:
        hold_after_link(os.environ["NEAR_GOAL_HOLDS_AT"])
