"""Arguments that LeRobot's environments need so that a seed chooses where an episode begins.

LIBERO:  with ``init_states``, its default, it plays 50 recorded states of a task in order from the
         first one in every process, whatever the seed: evaluations would repeat their states, and
         the harvest would collect those very states for training. Without it, the seed draws the
         places of the objects (LeRobot 0.4.4, ``envs/libero.py``, ``reset``).
Limits:  knows names alone; `cadenza.loop.backends.lerobot_seeds` judges what an environment does.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from cadenza.loop.constitution.flags import fold

#: The argument that makes LIBERO heed its seeds.
SEEDED: Final = "--env.init_states=false"
_NAME: Final = fold("env.init_states")


def replays_states(env_type: str) -> bool:
    """Return whether an environment plays recorded states unless told otherwise."""
    return "libero" in env_type  # LeRobot's own rule for what is made by LIBERO


def seeded_words(env_type: str, given: Iterable[str]) -> tuple[str, ...]:
    """Return what a command must say beside the words ``given`` so that its seeds count."""
    known = any(_is_about_states(word) for word in given)
    return (SEEDED,) if replays_states(env_type) and not known else ()


def unseeded_words(key: str, env_type: str, words: Sequence[str]) -> list[str]:
    """Return the words that make an environment ignore its seeds, one sentence each.

    Args:
        key: Where the words stand.
        env_type: Environment.
        words: Arguments of a command.
    """
    if not replays_states(env_type):
        return []
    return [
        f"{key}: expected {SEEDED} or nothing with {env_type}, got {word}: it then plays 50 "
        "recorded states in order whatever the seed, so that tests repeat and the harvest trains "
        "on the states that are tested; remove it"
        for word in words
        if _is_about_states(word) and word != SEEDED
    ]


def environment_of(words: Sequence[str]) -> str | None:
    """Return the environment that words name as ``--env.type``; None if they name none."""
    for place, word in enumerate(words):
        flag, equals, text = word.partition("=")
        if flag.startswith("--") and fold(flag) == fold("env.type"):
            return text if equals else "".join(words[place + 1 : place + 2])
    return None


def _is_about_states(word: str) -> bool:
    flag = word.partition("=")[0]
    return flag.startswith("--") and fold(flag) == _NAME
