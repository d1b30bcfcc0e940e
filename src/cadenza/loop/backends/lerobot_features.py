"""Whether dataset, policy and environment fit together and heed seeds, before compute is spent.

Shapes:       vectors as they are; images channels first, (C, H, W), whatever the source writes.
Why:          a policy trained on 96x96 pictures runs on 384x384 ones without a word, and fails.
Environment:  the seed alone chooses where an episode begins. Otherwise test and training data could
              share their states although their seeds differ, and policies would be compared on
              other states.
Evaluation:   LeRobot's report names no seeds. Episode i of a task begins from seed start + i, for
              any number of environments at once, as its evaluation does where it was asked.
Limits:       a dataset or policy that is not on this machine cannot be checked; sizes that a policy
              resizes to itself are its own affair.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

from cadenza.core.errors import ConfigurationError, IntegrityError
from cadenza.core.files import sha256_bytes
from cadenza.core.strict_json import parse_json_object
from cadenza.loop.backends.lerobot_probe import (
    RUN_SCRIPT,
    Ask,
    LeRobotEnvironment,
    identity,
    output_of,
)
from cadenza.loop.scripts.seed_checks import EPISODES, FIRST_SEED, SEEDS

#: Shape by name: inputs ``observation.*`` and the output ``action``.
Shapes: TypeAlias = Mapping[str, tuple[int, ...]]

#: Longest time that the tasks of an environment may take to show themselves, s: LIBERO makes a
#: simulator for each of up to 90, and pictures of it without a GPU.
_DESCRIBE_TIMEOUT_S: Final = 1800.0
#: Changes when the script ``describe`` answers more, so that older answers do not count.
_QUESTIONS: Final = "seeds"
#: What to do about an environment that cannot be made.
_CORRECT: Final = (
    "correct eval.env_type, eval.task_suite or eval.env_args, or install what this environment "
    "needs into LeRobot's"
)
_INPUTS: Final = "observation."
_OUTPUT: Final = "action"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """What one party takes and gives.

    Attributes:
        name: How messages call it.
        shapes: Shapes by name.
    """

    name: str
    shapes: Shapes

    def renamed(self, names: Mapping[str, str]) -> "Interface":
        """Return the same with other names where ``names`` has some, as ``--rename_map`` does."""
        shapes = {names.get(key, key): shape for key, shape in self.shapes.items()}
        return Interface(name=self.name, shapes=shapes)


def dataset_interface(root: Path) -> Interface:
    """Return what the frames of a local dataset have, from ``meta/info.json``.

    Raises:
        ConfigurationError: There is no dataset.
    """
    path = root / "meta" / "info.json"
    features = _read(path, "a LeRobot dataset").get("features")
    if not isinstance(features, dict):
        raise ConfigurationError(f"{path}: expected features, got {features!r}.")
    shapes: dict[str, tuple[int, ...]] = {}
    for key, feature in cast("dict[str, dict[str, Any]]", features).items():
        if key != _OUTPUT and not key.startswith(_INPUTS):
            continue
        shape = _shape(feature.get("shape"), source=f"{path}: {key}")
        image = feature.get("dtype") in ("image", "video")
        names = cast("Sequence[Any]", feature.get("names") or ())
        last = bool(names) and str(names[-1]).startswith("channel")
        shapes[key] = (shape[-1], *shape[:-1]) if image and last else shape
    return Interface(name=f"dataset {root}", shapes=shapes)


def policy_interface(path: Path) -> Interface | None:
    """Return what a local policy takes and gives, from ``config.json``; None if it does not say.

    Raises:
        ConfigurationError: The file is damaged.
    """
    file = path / "config.json"
    if not file.is_file():
        return None
    config = _read(file, "a policy")
    found: dict[str, Any] = {}
    for part in ("input_features", "output_features"):
        found |= cast("dict[str, Any]", config.get(part) or {})
    if not found:
        return None
    shapes = {
        key: _shape(cast("dict[str, Any]", feature).get("shape"), source=f"{file}: {key}")
        for key, feature in found.items()
    }
    return Interface(name=f"policy {path}", shapes=shapes)


def describe_environment(
    environment: LeRobotEnvironment, words: Sequence[str], *, ask: Ask | None = None
) -> tuple[Path, dict[str, Any]]:
    """Return what the script ``describe`` finds out about an environment, and the file with it.

    Args:
        environment: Where LeRobot is.
        words: ``--env-type=``, ``--task=`` and ``--env.key=value`` words.
        ask: Runs a command and returns what it prints; None for a process of its own.

    Raises:
        ConfigurationError: The environment cannot be made.
    """
    name = "\0".join([_QUESTIONS, identity(environment), *sorted(words)])
    file = environment.cache / f"environment-{sha256_bytes(name.encode())[:16]}.json"
    if not file.is_file():
        command = [str(environment.python), "-P", str(RUN_SCRIPT), "describe", *words]
        question = (f"an environment that it can make of {' '.join(words)}", _CORRECT)
        ask = (
            partial(output_of, timeout_s=_DESCRIBE_TIMEOUT_S, question=question)
            if ask is None
            else ask
        )
        ask([*command, f"--result-json={file}"])
    return file, _read(file, "the description of an environment")


def environment_interface(
    environment: LeRobotEnvironment, words: Sequence[str], *, ask: Ask | None = None
) -> Interface:
    """Return what an environment shows and takes, as seen in one reset of it.

    Args:
        environment: Where LeRobot is.
        words: ``--env-type=``, ``--task=`` and ``--env.key=value`` words.
        ask: Runs a command and returns what it prints; None for a process of its own.

    Raises:
        ConfigurationError: The environment cannot be made.
    """
    file, facts = describe_environment(environment, words, ask=ask)
    seen = cast("dict[str, Any]", facts.get("observation", {}))
    shapes = {name: _shape(shape, source=f"{file}: {name}") for name, shape in seen.items()}
    shapes[_OUTPUT] = _shape(facts.get("action"), source=f"{file}: {_OUTPUT}")
    return Interface(name=f"environment {' '.join(words)}", shapes=shapes)


def require_agreement(wants: Interface, gives: Interface) -> None:
    """Raise unless ``gives`` has everything that ``wants`` has, in the same shapes.

    Raises:
        ConfigurationError: A name is missing, or a shape differs.
    """
    for key, shape in sorted(wants.shapes.items()):
        found = gives.shapes.get(key)
        if found is None:
            raise ConfigurationError(
                f"{key}: expected it of {gives.name}, as {wants.name} has it, got only "
                f"{', '.join(sorted(gives.shapes))}; set eval.env_args (--env.obs_type=...) or a "
                "--rename_map."
            )
        if found != shape:
            raise ConfigurationError(
                f"{key}: expected the shape {_shown(shape)} of {wants.name}, got "
                f"{_shown(found)} of {gives.name}; use data and an environment of one size."
            )


def _shown(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def _shape(value: object, *, source: str) -> tuple[int, ...]:
    found = cast("list[Any]", value) if isinstance(value, list) else None
    if found is None or not all(type(size) is int and size >= 0 for size in found):
        raise ConfigurationError(f"{source}: expected a shape, got {value!r}.")
    return tuple(found)


def _read(path: Path, what: str) -> dict[str, Any]:
    try:
        return parse_json_object(path.read_bytes(), source=str(path))
    except (OSError, IntegrityError) as error:
        raise ConfigurationError(f"{path}: expected {what}, got: {error}") from error


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
