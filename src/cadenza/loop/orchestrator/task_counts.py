"""In how many tasks a run plays its episodes: LeRobot plays them in every task of a suite."""

import re
from typing import Final

from cadenza.loop.config import LoopConfig
from cadenza.loop.constitution.lerobot_programs import suite_sizes, tasks_played

#: Numbers of the tasks that a run plays of a suite, in the further arguments.
_TASK_IDS: Final = re.compile(r"--env\.task_ids=\[([0-9, ]+)\]")


def tasks_of(config: LoopConfig) -> int:
    """Return the number of tasks; 1 natively, where an episode is one of all tasks.

    Raises:
        ConstitutionError: Nobody says how many tasks a suite has.
        ConfigurationError: ``data.instructions`` names no file of suites.
    """
    measured, described = config.eval, config.data.instructions
    if config.backend == "native":
        return 1
    chosen = [
        int(number)
        for word in (*measured.env_args, *measured.extra_args)
        for found in _TASK_IDS.findall(word)
        for number in found.split(",")
        if number.strip()
    ]
    suites = [name.strip() for name in measured.task_suite.split(",")]
    known = {} if described is None else suite_sizes(described)
    return tasks_played(measured.env_type, suites, chosen, known)
