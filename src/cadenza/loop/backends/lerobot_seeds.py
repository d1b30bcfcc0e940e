"""Whether seeds mean with LeRobot what the loop takes them for, before compute is spent.

Environment:  the seed alone chooses where an episode begins. Otherwise test and training data could
    share their states although their seeds differ, and policies would be compared on other states.
Evaluation:   LeRobot's report names no seeds. Episode i of a task begins from seed start + i, for
    any number of environments at once, as its evaluation does where it was asked.
"""

from collections.abc import Mapping
from typing import Any, Final, cast

from cadenza.core.errors import ConfigurationError
from cadenza.loop.scripts.seed_checks import EPISODES, FIRST_SEED, SEEDS

#: What an evaluation's report must begin from.
_IN_ORDER: Final = list(range(FIRST_SEED, FIRST_SEED + EPISODES))


def require_seeds(facts: Mapping[str, Any], *, source: str) -> dict[str, str]:
    """Raise unless seeds choose initial states; return what a run records about it.

    Args:
        facts: What the script ``describe`` found.
        source: What was described, for messages.

    Raises:
        ConfigurationError: An environment does not follow its seeds, or was not asked whether it
            does, or LeRobot's evaluation plays its episodes from other seeds.
    """
    given: Any = facts.get("seeds")
    if not isinstance(given, dict) or not given:
        raise ConfigurationError(
            f"{source}: expected facts about the seeds of tasks, got {given!r}; remove the file."
        )
    found = cast("dict[str, Mapping[str, object]]", given)
    for task, answers in found.items():
        problem = _problem(answers)
        if problem is not None:
            raise ConfigurationError(
                f"{task}: expected the seed to choose where an episode begins, got {problem} "
                f"({source}); policies could be tested on the states that they were trained on, or "
                "each on other ones. Set eval.env_type, or eval.env_args, to an environment that "
                "follows its seeds."
            )
    played = facts.get("evaluated_seeds")
    if played not in (None, _IN_ORDER):
        raise ConfigurationError(
            f"lerobot-eval: expected episodes from the seeds {_IN_ORDER}, got {played} ({source}); "
            "install LeRobot 0.4.4, whose evaluation plays them in order."
        )
    return {
        "initial_states": f"chosen by the seed, as resets of {', '.join(sorted(found))} show",
        "evaluated_seeds": "not known" if played is None else "start + episode, as a trial shows",
    }


def _problem(answers: Mapping[str, object]) -> str | None:
    """Return how a task does not follow its seeds; None if it does."""
    if answers.get("repeats") is not True:
        return f"another state when it was reset from seed {SEEDS[0]} again"
    if answers.get("differs") is not True:
        others = " or ".join(map(str, SEEDS[1:]))
        return f"the state of seed {SEEDS[0]} from seed {others} too"
    return None
