"""How many tasks LeRobot plays of a suite: episodes count in each of them.

Source:  LeRobot 0.4.4 to 0.6, ``envs/libero.py``, ``envs/metaworld.py``, ``envs/factory.py``.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

from cadenza.core.errors import ConfigurationError, IntegrityError, nearest_name
from cadenza.core.strict_json import parse_json_object
from cadenza.loop.constitution.flags import denied, quoted

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
#: Tasks of Meta-World, which LeRobot takes by these names alone.
_METAWORLD_TASKS: Final = """
    assembly basketball bin-picking box-close button-press button-press-topdown
    button-press-topdown-wall button-press-wall coffee-button coffee-pull coffee-push dial-turn
    disassemble door-close door-lock door-open door-unlock drawer-close drawer-open faucet-close
    faucet-open hammer hand-insert handle-press handle-press-side handle-pull handle-pull-side
    lever-pull peg-insert-side peg-unplug-side pick-out-of-hole pick-place pick-place-wall
    plate-slide plate-slide-back plate-slide-back-side plate-slide-side push push-back push-wall
    reach reach-wall shelf-place soccer stick-pull stick-push sweep sweep-into window-close
    window-open"""
#: Tasks of its groups, and of a task.
_METAWORLD: Final = {"easy": 28, "medium": 11, "hard": 6, "very_hard": 5} | {
    f"{prefix}{task}-v3": 1 for prefix in ("", "metaworld-") for task in _METAWORLD_TASKS.split()
}
#: Environments of one task.
_SINGLE: Final = ("pusht", "aloha")


def tasks_played(
    env_type: str,
    suites: Sequence[str],
    task_ids: Sequence[int],
    known: Mapping[str, int],
) -> int:
    """Return the number of tasks that a command plays, or refuse a suite that nobody counts.

    ``known`` are suites that a file describes; it cannot make those of LeRobot smaller, and
    Meta-World plays no others.
    """
    if env_type in _SINGLE:
        return 1
    sizes = dict(_METAWORLD) if env_type == "metaworld" else dict(known)
    for suite, size in _LIBERO.items() if env_type == "libero" else ():
        sizes[suite] = max(size, sizes.get(suite, 0))
    if not suites:
        raise denied(
            "unknown_suite", f"expected --env.task with the environment {env_type}, got none"
        )
    for suite in suites:
        if suite not in sizes:
            listed, remedy = ", ".join(sizes), "list its instructions in data.instructions' file"
            if env_type == "metaworld":
                listed = "easy, medium, hard, very_hard, or one of its tasks, as push-v3"
                near = nearest_name(suite, sizes)
                remedy = f"did you mean {near!r}?" if near else "correct it"
            raise denied(
                "unknown_suite",
                f"expected a suite of {env_type} whose tasks are known ({listed}), got "
                f"{quoted(suite)}; {remedy}",
            )
    chosen = len(set(task_ids)) if env_type == "libero" else 0
    return sum(min(sizes[suite], chosen or sizes[suite]) for suite in suites)


def suite_sizes(path: Path) -> dict[str, int]:
    """Return the tasks of each suite in a file of instructions, or a `ConfigurationError`."""
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
