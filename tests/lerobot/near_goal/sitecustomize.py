"""Adds a task to LeRobot's environment, as a package installed there would.

Python imports this file when it starts with this folder in ``PYTHONPATH``. Where there is no PushT,
as in this project's own environment, it does nothing.
"""

import importlib.util

if importlib.util.find_spec("gym_pusht") is not None:
    import gymnasium

    gymnasium.register(
        id="gym_pusht/NearPushT-v0",
        entry_point="near_pusht:NearPushTEnv",
        max_episode_steps=300,
    )
