"""How many tasks a command of LeRobot plays: it plays its episodes in each of them.

Source:  LeRobot 0.4.4, ``envs/libero.py``, ``envs/metaworld.py``, ``envs/factory.py``: a suite of
         LIBERO has a task per instruction, a group of Meta-World several tasks, any other name of
         Meta-World is one task, and PushT and ALOHA are one task whatever they are given.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

from cadenza.core.errors import ConfigurationError, IntegrityError
from cadenza.core.strict_json import parse_json_object
from cadenza.loop.constitution.verdict import denied, quoted

#: Tasks of LIBERO's suites.
_LIBERO: Final = {
    "libero_spatial": 10,
    "libero_object": 10,
    "libero_goal": 10,
    "libero_10": 10,
    "libero_90": 90,
}
#: Suites whose instructions the package libero knows.
LIBERO_SUITES: Final = tuple(_LIBERO)
#: Tasks of Meta-World's groups.
_METAWORLD: Final = {"easy": 28, "medium": 11, "hard": 6, "very_hard": 5}
#: Environments of one task.
_SINGLE: Final = ("pusht", "aloha")


def tasks_played(
    env_type: str,
    suites: Sequence[str],
    task_ids: Sequence[int],
    known: Mapping[str, int],
) -> int:
    """Return the number of tasks that a command plays, those that are named twice counted twice.

    Args:
        env_type: Environment.
        suites: Suites or tasks that the command names.
        task_ids: Numbers of the tasks it takes of each suite of LIBERO; none for all.
        known: Tasks of further suites, or of those that a file counts otherwise, by suite.

    Raises:
        ConstitutionError: Nobody says how many tasks a suite has.
    """
    if env_type in _SINGLE:
        return 1
    sizes = {**(_LIBERO if env_type == "libero" else {}), **known}
    if env_type == "metaworld":
        sizes = {**dict.fromkeys(suites, 1), **_METAWORLD, **known}
    if not suites:
        raise denied(
            "unknown_suite", f"expected --env.task with the environment {env_type}, got none"
        )
    for suite in suites:
        if suite not in sizes:
            raise denied(
                "unknown_suite",
                f"expected a suite of {env_type} whose tasks are known ({', '.join(sizes)}), got "
                f"{quoted(suite)}; list its instructions in the file of data.instructions",
            )
    chosen = len(set(task_ids)) if env_type == "libero" else 0
    return sum(min(sizes[suite], chosen or sizes[suite]) for suite in suites)


def suite_sizes(path: Path) -> dict[str, int]:
    """Return the number of tasks of each suite in a file of instructions.

    Args:
        path: JSON ``{"suite": ["instruction of task 0", ...]}``.

    Raises:
        ConfigurationError: It is no such file.
    """
    try:
        document: dict[str, Any] = parse_json_object(path.read_bytes(), source=str(path))
    except (OSError, IntegrityError) as error:
        raise ConfigurationError(
            f"data.instructions: expected JSON of suites in {path}, got: {error}"
        ) from error
    sizes: dict[str, int] = {}
    for suite, found in document.items():
        words: list[object] = cast("list[object]", found) if isinstance(found, list) else []
        if not words or not all(isinstance(word, str) for word in words):
            raise ConfigurationError(
                f"data.instructions: expected a list of instructions for {suite!r} in {path}, got "
                f"{quoted(cast('object', found))}."
            )
        sizes[suite] = len(words)
    return sizes
