"""What a configuration means for its back end: defaults, names that fit, seeds that count.

LIBERO:  with ``init_states``, its default, it plays 50 recorded states of a task in order from the
         first one in every process, whatever the seed: evaluations would repeat their states, and
         the harvest would collect those very states for training. Without it, the seed draws the
         places of the objects (LeRobot 0.4.4, ``envs/libero.py``, ``reset``).
Limits:  knows names alone; whether a back end runs here, and whether an environment heeds its
         seeds, is found out by the back end's own probe.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

from pydantic import BaseModel

from cadenza.core.errors import nearest_name
from cadenza.loop.constitution.flags import fold

#: Environments and policy types of LeRobot 0.4 to 0.6; each release has some of them.
LEROBOT_ENVIRONMENTS: Final = frozenset(
    ("aloha", "pusht", "gym_manipulator", "libero", "metaworld", "isaaclab_arena")
)
LEROBOT_POLICIES: Final = (
    *("act", "diffusion", "eo1", "evo1", "fastwam", "gaussian_actor", "groot", "lingbot_va"),
    *("molmoact2", "multi_task_dit", "pi0", "pi05", "pi0_fast", "reward_classifier", "sac", "sarm"),
    *("smolvla", "tdmpc", "vla_jepa", "vqbet", "wall_x", "xvla"),
)
#: Where LeAgents keeps its rules, relative to the current folder.
LEAGENTS_RULES: Final = Path("configs/constitution.yaml")
#: Policy types of the native back end.
NATIVE_POLICIES: Final = ("bc", "bc_large")

#: Defaults that differ from those of the sections, by back end.
_NATIVE: Final[dict[str, Any]] = {
    "policy_ladder": [{"name": name} for name in NATIVE_POLICIES],
    "train": {"steps": 2000, "batch_size": 256},
    "eval": {
        "env_type": "crossing",
        "task_suite": "default",
        "n_episodes": 50,
        "max_episodes": 480,
    },
    "improve": {"device": "cpu"},
}
_LEROBOT: Final[dict[str, Any]] = {
    "policy_ladder": [
        {"name": "smolvla", "init": "lerobot/smolvla_base"},
        {"name": "pi05", "init": "lerobot/pi05_base"},
    ],
}


def with_backend_defaults(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``document``, a configuration, with its back end's defaults where it says nothing.

    Sections may be mappings or section objects; of the latter, the fields that were set count.
    """
    lerobot = document.get("backend", "native") == "lerobot"
    result = dict(document)
    for key, default in (_LEROBOT if lerobot else _NATIVE).items():
        given = result.get(key)
        if isinstance(given, BaseModel):
            given = given.model_dump(exclude_unset=True)
        if key not in result:
            result[key] = default
        elif isinstance(default, dict) and isinstance(given, dict):
            merged = {**cast("dict[str, Any]", default), **cast("dict[str, Any]", given)}
            result[key] = _with_room_for_the_first_look(merged, cast("dict[str, Any]", given))
    return result


def _with_room_for_the_first_look(
    section: dict[str, Any], given: Mapping[str, Any]
) -> dict[str, Any]:
    """Return ``section`` with a defaulted ``max_episodes`` of at least ``n_episodes``."""
    first, most = given.get("n_episodes"), section.get("max_episodes")
    if "max_episodes" not in given and type(first) is int and type(most) is int and first > most:
        return {**section, "max_episodes": first}
    return section


def misplaced_names(
    *, backend: str, named: bool, rungs: Iterable[str], env_type: str, seed_dataset: str
) -> list[str]:
    """Return what belongs to another back end, one sentence each.

    ``named`` says whether the configuration names the back end, instead of taking the default.
    """
    known, others, other = LEROBOT_POLICIES, NATIVE_POLICIES, "native"
    if backend == "native":
        known, others, other = others, known, "lerobot"
    advice = f"set backend: {other}"
    found = [
        f"policy_ladder: expected one of {', '.join(known)}, got {name!r}; "
        + (advice if name in others else closest(name, known))
        for name in rungs
        if name not in known
    ]
    if backend == "lerobot":
        return found
    if env_type in LEROBOT_ENVIRONMENTS:
        found.append(f"eval.env_type: expected one of our tasks, got {env_type!r}; {advice}")
    owner, slash, _ = seed_dataset.partition("/")
    if not named and slash and owner != "local":
        found.append(
            f"seed_dataset: expected a local name without a back end, got {seed_dataset!r}; "
            f"{advice}, or backend: native"
        )
    return found


def closest(name: str, known: Iterable[str]) -> str:
    """Return what to do about an unknown name: the end of a sentence."""
    near = nearest_name(name, sorted(known))
    return f"did you mean {near!r}?" if near else "correct it"


#: The argument that makes LIBERO heed its seeds.
SEEDED: Final = "--env.init_states=false"


def replays_states(env_type: str) -> bool:
    """Return whether an environment plays recorded states by default."""
    return "libero" in env_type  # LeRobot's own rule for what is made by LIBERO


def seeded_words(env_type: str, given: Iterable[str]) -> tuple[str, ...]:
    """Return what a command must say beside the words ``given`` so that its seeds count."""
    known = any(flag_of(word) == fold("env.init_states") for word in given)
    return (SEEDED,) if replays_states(env_type) and not known else ()


def unseeded_words(key: str, env_type: str, words: Sequence[str]) -> list[str]:
    """Return the words that make an environment ignore its seeds, one sentence each.

    ``env_type`` counts where they name no other.
    """
    env_type = environment_of(words) or env_type
    if not replays_states(env_type):
        return []
    return [
        f"{key}: expected {SEEDED} or nothing with {env_type}, got {word}: it then "
        "plays 50 recorded states in order whatever the seed, so that tests repeat and the "
        "harvest trains on the states that are tested; remove it"
        for word in words
        if flag_of(word) == fold("env.init_states") and word != SEEDED
    ]


def environment_of(words: Sequence[str]) -> str | None:
    """Return the environment that words name as ``--env.type``; None if they name none."""
    for place, word in enumerate(words):
        if flag_of(word) == fold("env.type"):
            _, equals, text = word.partition("=")
            return text if equals else "".join(words[place + 1 : place + 2])
    return None


def flag_of(word: str) -> str | None:
    """Return the folded name of the flag that a word gives; None if it is none."""
    return fold(word.partition("=")[0]) if word.startswith("--") else None
