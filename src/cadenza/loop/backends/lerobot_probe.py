"""LeRobot's environment: where it is, what it can do, and what fits it.

The environment is found, never imported: it may need another torch. Flags come from each tool's
``--help``, because releases rename them. Asking takes half a minute, so answers are kept in a file
that counts until the environment changes.

Shapes:  vectors as they are; images channels first, (C, H, W), whatever the source writes.
Seeds:   the seed alone chooses where an episode begins; otherwise test and training data could
         share their states. LeRobot's report names no seeds: episode i of a task begins from seed
         start + i, as its evaluation does where it was asked.
Limits:  a dataset or policy that is not on this machine cannot be checked.
"""

import json
import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Self, TypeAlias, cast

from pydantic import ValidationError

from cadenza.core.errors import ConfigurationError, IntegrityError, MissingExtraError
from cadenza.core.extras import foreign_python, python_variable, user_cache
from cadenza.core.files import atomic_write_text, sha256_bytes
from cadenza.core.strict_json import parse_json_object
from cadenza.loop.backends.base import dataset_info
from cadenza.loop.contracts.records import Record
from cadenza.loop.processes import job_environment
from cadenza.loop.scripts.describe_environment import EPISODES, FIRST_SEED, SEEDS

#: Environment variable that names the interpreter.
VARIABLE: Final = python_variable("lerobot")
#: The file that LeRobot's interpreter starts for our scripts.
RUN_SCRIPT: Final = Path(__file__).resolve().parents[1] / "scripts" / "run.py"
#: Programs that are scripts of ours, by their word for `RUN_SCRIPT`. Training is one too, since
#: LeRobot's own refuses to start again.
_SCRIPTS: Final = {
    "cadenza-lerobot-collect": "collect",
    "cadenza-lerobot-merge": "merge",
    "cadenza-lerobot-select": "select",
    "lerobot-train": "train",
}
#: LeRobot's own tools, whose flags matter.
TOOLS: Final = ("lerobot-train", "lerobot-eval")


def lerobot_python(environ: Mapping[str, str]) -> Path | None:
    """Return the interpreter of LeRobot's environment; None for none."""
    return foreign_python("lerobot", environ)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeRobotEnvironment:
    """An environment with LeRobot, and a folder for what was found out about it.

    Its interpreter is absolute and not resolved: a link to another one makes it an environment.
    """

    python: Path
    cache: Path

    @classmethod
    def find(cls, environ: Mapping[str, str] | None = None) -> Self:
        """Return the environment that `lerobot_python` finds, or raise `MissingExtraError`."""
        environ = os.environ if environ is None else environ
        python = lerobot_python(environ)
        if python is None:
            raise MissingExtraError(
                f"LeRobot: expected an environment named by {VARIABLE} or in "
                f"{user_cache(environ) / 'environments'}, got none; run: python "
                "environments/install.py environments/lerobot.txt --needs-header linux/input.h"
            )
        return cls(python=python.absolute(), cache=user_cache(environ) / "lerobot")

    def tool(self, name: str) -> Path:
        """Return the executable of one of LeRobot's tools."""
        return self.python.with_name(name)


def lerobot_programs(environment: LeRobotEnvironment) -> dict[str, tuple[str, ...]]:
    """Return the programs of LeRobot's names; a `ConfigurationError` without LeRobot."""
    missing = [name for name in TOOLS if not environment.tool(name).is_file()]
    if missing:
        raise ConfigurationError(
            f"LeRobot: expected {missing[0]} beside {environment.python}, got no such file; "
            "install LeRobot there, or name another environment."
        )
    # -P as in a console script: modules lying in the current folder are not LeRobot's
    script = (str(environment.python), "-P", str(RUN_SCRIPT))
    return {
        "lerobot-eval": (str(environment.tool("lerobot-eval")),),
        **{name: (*script, word) for name, word in _SCRIPTS.items()},
    }


def machine_has_gpu(environ: Mapping[str, str], *, device_folder: Path = Path("/dev")) -> bool:
    """Return whether LeRobot would find an NVIDIA GPU here."""
    hidden = environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    return not hidden and (device_folder / "nvidia0").exists()


#: Longest time a tool gets to explain itself, s; it imports torch, from a cold disk perhaps.
_TIMEOUT_S: Final = 300.0
_FLAG: Final = re.compile(r"(?<![\w-])--([a-z][a-z0-9_.]*[a-z0-9])")
#: Flags that the tools read before their parser does, so that its help does not know them.
_UNLISTED: Final = frozenset({"policy.path"})
_VERSION: Final = "import importlib.metadata as m; print(m.version('lerobot'))"
#: What to do about a tool that does not answer.
_INSTALL: Final = "install what is missing, or the environment again"

#: Runs a command and returns its standard output.
Ask = Callable[[Sequence[str]], str]


class LeRobotTools(Record):
    """Version of an installed LeRobot, and the flags of its tools without hyphens."""

    version: str
    flags: dict[str, frozenset[str]]

    @classmethod
    def from_help(cls, version: str, texts: Mapping[str, str]) -> Self:
        """Return what ``texts`` of ``--help`` say; a `ConfigurationError` if they are none."""
        flags = {tool: frozenset(_FLAG.findall(text)) for tool, text in texts.items()}
        for tool, marker in (("lerobot-train", "steps"), ("lerobot-eval", "eval.n_episodes")):
            if marker not in flags.get(tool, frozenset()):
                raise ConfigurationError(
                    f"{tool} {version}: expected --{marker} in its help, got {len(texts)} texts "
                    "without it; is this LeRobot?"
                )
        return cls(version=version, flags=flags)

    @property
    def train_eval_flag(self) -> str:
        """Flag of training for the steps between its own evaluations."""
        known = self.flags["lerobot-train"]
        return "env_eval_freq" if "env_eval_freq" in known else "eval_freq"

    @property
    def capabilities(self) -> dict[str, str]:
        """What a run records."""
        return {"lerobot": self.version, "train_eval_flag": self.train_eval_flag}

    def _may_have(self, tool: str, name: str) -> bool:
        """Return whether the tool's help lists a flag, or lists none of its group but the type.

        LeRobot 0.6 lists what depends on a type (``policy.device``) only once the type is chosen.
        """
        known = self.flags.get(tool, frozenset[str]())
        group = name.partition(".")[0] + "."
        return name in known or {flag for flag in known if flag.startswith(group)} == {
            f"{group}type"
        }

    def translated(self, tool: str, words: Sequence[str]) -> tuple[str, ...]:
        """Return further ``words`` with this release's names, or a `ConfigurationError`."""
        result: list[str] = []
        for word in words:
            flag, equals, text = word.partition("=")
            name = flag.removeprefix("--")
            if name in ("eval_freq", "env_eval_freq") and tool == "lerobot-train":
                name = self.train_eval_flag
            if flag.startswith("--") and name not in _UNLISTED and not self._may_have(tool, name):
                raise ConfigurationError(
                    f"{tool} {self.version}: expected a flag that it has, got {flag}; "
                    f"`{tool} --help` lists them."
                )
            result.append(f"--{name}{equals}{text}" if flag.startswith("--") else word)
        return tuple(result)


def probe(environment: LeRobotEnvironment, *, ask: Ask | None = None) -> LeRobotTools:
    """Return what the environment's LeRobot can do, or raise `ConfigurationError`."""
    file = environment.cache / f"tools-{identity(environment)}.json"
    with suppress(OSError, ValidationError):  # never asked, or the file is damaged: ask
        return LeRobotTools.model_validate_json(file.read_bytes())
    ask = output_of if ask is None else ask
    version = ask([str(environment.python), "-I", "-c", _VERSION]).strip()
    texts = {tool: ask([str(environment.tool(tool)), "--help"]) for tool in TOOLS}
    tools = LeRobotTools.from_help(version, texts)
    file.parent.mkdir(parents=True, exist_ok=True)
    atomic_write_text(file, tools.model_dump_json())
    return tools


def identity(environment: LeRobotEnvironment) -> str:
    """Return a name for the environment as it is now: where it is, and when it last changed."""
    folders = sorted(environment.python.parents[1].glob("lib/python*/site-packages"))
    changed = [path.stat().st_mtime_ns for path in (environment.python, *folders) if path.exists()]
    return sha256_bytes(json.dumps([str(environment.python), changed]).encode())[:16]


def output_of(
    command: Sequence[str],
    *,
    timeout_s: float = _TIMEOUT_S,
    question: tuple[str, str] | None = None,
) -> str:
    """Return what a command of LeRobot's environment, without network, prints in ``timeout_s``.

    If it fails, the `ConfigurationError` tells what ``question`` expected of it and what to do;
    None for the command itself and an environment that lacks something.
    """
    environ = {**job_environment(os.environ), "HF_HUB_OFFLINE": "1", "COLUMNS": "100"}
    try:
        done = subprocess.run(  # noqa: S603 - our own words, no shell
            list(command),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=True,
            env=environ,
        )
    except (OSError, subprocess.SubprocessError) as error:
        expected, remedy = question or (f"'{' '.join(command)}' to answer", _INSTALL)
        raise ConfigurationError(
            f"LeRobot: expected {expected}, got {_told(error)}; {remedy}."
        ) from error
    return done.stdout.decode(errors="replace")


def _told(error: OSError | subprocess.SubprocessError) -> str:
    """Return why a command failed: the last line of what it said, if it said something."""
    if isinstance(error, subprocess.CalledProcessError):
        lines = error.stderr.decode(errors="replace").strip().splitlines()
        return f"exit code {error.returncode}" + (f" and '{lines[-1].strip()}'" if lines else "")
    if isinstance(error, subprocess.TimeoutExpired):
        return f"nothing within {error.timeout} s"
    return str(error)


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
    """What one party, by its ``name`` in messages, takes and gives: shapes by name."""

    name: str
    shapes: Shapes

    def renamed(self, names: Mapping[str, str]) -> "Interface":
        """Return the same with other names where ``names`` has some, as ``--rename_map`` does."""
        shapes = {names.get(key, key): shape for key, shape in self.shapes.items()}
        return Interface(name=self.name, shapes=shapes)


def dataset_interface(root: Path) -> Interface:
    """Return what the frames of a local dataset have, or raise `ConfigurationError` without one."""
    features = dataset_info(root).get("features")
    if not isinstance(features, dict):
        raise ConfigurationError(f"{root}: expected features of the dataset, got {features!r}.")
    shapes: dict[str, tuple[int, ...]] = {}
    for key, feature in cast("dict[str, dict[str, Any]]", features).items():
        if key != _OUTPUT and not key.startswith(_INPUTS):
            continue
        shape = _shape(feature.get("shape"), source=f"{root}: {key}")
        image = feature.get("dtype") in ("image", "video")
        names = cast("Sequence[Any]", feature.get("names") or ())
        last = bool(names) and str(names[-1]).startswith("channel")
        shapes[key] = (shape[-1], *shape[:-1]) if image and last else shape
    if (root / "meta" / "stats.json").is_file():  # by which training scales; NaN is no JSON
        _read(root / "meta" / "stats.json", "statistics of finite numbers")
    return Interface(name=f"dataset {root}", shapes=shapes)


def policy_interface(path: Path) -> Interface | None:
    """Return what a local policy takes and gives; None if its ``config.json`` does not say."""
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
    """Return what the script ``describe`` finds out, and the file with it.

    An environment that cannot be made is a `ConfigurationError`.
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
    """Return what an environment shows and takes in one reset; errors as `describe_environment`."""
    file, facts = describe_environment(environment, words, ask=ask)
    seen = cast("dict[str, Any]", facts.get("observation", {}))
    shapes = {name: _shape(shape, source=f"{file}: {name}") for name, shape in seen.items()}
    shapes[_OUTPUT] = _shape(facts.get("action"), source=f"{file}: {_OUTPUT}")
    return Interface(name=f"environment {' '.join(words)}", shapes=shapes)


def require_agreement(wants: Interface, gives: Interface) -> None:
    """Raise `ConfigurationError` unless ``gives`` has all that ``wants`` has, in equal shapes."""
    for key, shape in sorted(wants.shapes.items()):
        found = gives.shapes.get(key)
        if found is None:
            raise ConfigurationError(
                f"{key}: expected {gives.name} to have it, like {wants.name}, got only "
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
    """Raise unless seeds choose initial states; return what a run records about it."""
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
