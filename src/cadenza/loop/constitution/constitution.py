"""The file of rules, and the judgement of every command before it runs: deny by default.

Rules:   a limit that the file lacks is no permission: what it would bound is refused. Names that
         are not rules are refused too, since a misspelt prohibition would otherwise prohibit
         nothing.
Order:   forbidden words, program, added words and flags, which flags belong together, values and
         paths, data of a hub, environments, seeds, limits. The first refusal counts; it names its
         rule and is logged.
Limits:  what a folder of local data lacks, LeRobot fetches from the hub under the data's name.
"""

import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Final, Literal, Self, cast

from pydantic import (
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from cadenza.core.errors import ConfigurationError
from cadenza.core.files import canonical_json, sha256_bytes
from cadenza.core.shipped_configs import shipped_config
from cadenza.core.yaml_files import read_yaml
from cadenza.loop.constitution.flags import (
    KEY_PATTERN,
    ConstitutionError,
    Verdict,
    denied,
    fold,
    quoted,
    require_plain_words,
    require_value,
)
from cadenza.loop.constitution.kinds import (
    MAX_INTEGER,
    NAME,
    TRUTH,
    Given,
    Kind,
    Roots,
    Value,
    choice,
    listed_on_hub,
    number,
    read_path,
    require_separate,
    spelled,
    text,
    whole,
    write_path,
)
from cadenza.loop.constitution.suites import suite_sizes, tasks_played
from cadenza.loop.constitution.typed_jobs import PROGRAMS, TypedJob
from cadenza.loop.contracts.records import Record
from cadenza.loop.validation import problems

#: Flags that no file of rules can allow: they read settings from files, load code or report.
_NEVER: Final = (
    *("config", "resume", "discover_packages", "trust_remote", "hub_path", "base_model_path"),
    *("kwargs", "gym_id", "wandb", "push_to_hub"),
)

_Word = Annotated[str, StringConstraints(pattern=r"^[!-~]{1,100}$")]
_Positive = Annotated[float, Field(gt=0)]
_Count = Annotated[int, Field(strict=True, ge=1, le=MAX_INTEGER)]
_Limit = Annotated[int, Field(strict=True, ge=0, le=MAX_INTEGER)]
_HubRepository = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*/(?:\*|[A-Za-z0-9][A-Za-z0-9_.-]*)$"),
]


class ExtraKey(Record):
    """A flag that a file of rules adds to a program: its kind, and what that allows."""

    kind: Literal["integer", "number", "boolean", "name", "text", "choice", "read_path"]
    low: Annotated[float, Field(strict=True, ge=0)] = 0.0
    high: Annotated[float, Field(strict=True, ge=0)] | None = None
    choices: tuple[_Word, ...] = ()

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        numeric, high = self.kind in ("integer", "number"), self.high or 0.0
        if numeric != (self.high is not None):
            raise ValueError(f"high: expected for a number and for nothing else, got {self.high}")
        if self.high is not None and self.high < self.low:
            raise ValueError(f"low: expected at most high, got {self.low} > {self.high}")
        if self.kind == "integer" and (self.low % 1.0 or high % 1.0):
            raise ValueError(
                f"low, high: expected whole numbers for an integer, got {self.low} and {high}"
            )
        if (self.kind == "choice") != bool(self.choices):
            raise ValueError(
                "choices: expected for the kind 'choice' and for nothing else, got "
                f"{list(self.choices)}"
            )
        return self

    def as_kind(self) -> Kind:
        """Return the kind of value it takes."""
        high = self.high or 0.0
        kinds: dict[str, Kind] = {
            "integer": whole(int(self.low), int(high)),
            "number": number(self.low, high),
            "boolean": TRUTH,
            "name": NAME,
            "text": text,
            "choice": choice(*self.choices),
            "read_path": read_path,
        }
        return kinds[self.kind]


class ProposalBounds(Record):
    """What proposals may move beside the data; what is not named stays as configured."""

    learning_rate: tuple[_Positive, _Positive] | None = None
    steps: tuple[_Count, _Count] | None = None
    batch_size: tuple[_Count, _Count] | None = None
    rungs: tuple[_Word, ...] = ()

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        for name in ("learning_rate", "steps", "batch_size"):
            bounds: tuple[float, float] | None = getattr(self, name)
            if bounds is not None and bounds[0] > bounds[1]:
                raise ValueError(f"{name}: expected [least, most], got {list(bounds)}")
        return self


class Rules(Record):
    """The rules of one file.

    Attributes:
        forbidden_args: Beginnings of arguments that no command may have.
        allowed_args: Beginnings of arguments that jobs may have although they weaken the guard, the
            suite or the seeds: ``--filter=off``.
        max_train_steps: Most gradient steps of a job.
        allowed_env_types: Environments a job may play in.
        max_eval_episodes: Most episodes of an evaluation, over all of its tasks, of the evaluations
            of a training together, and of a harvest.
        max_collect_episodes: Most episodes of a collection; most attempts of it or of a harvest.
        allowed_programs: Programs that may run, of those in the table.
        allowed_hub_policies: Hub repositories of weights: ``owner/name``, or ``owner/*`` for all.
        extra_keys: Further flags, by program (``"lerobot-train"``) and flag.
        proposals: What proposals may move; None for data alone.
    """

    forbidden_commands: tuple[_Word, ...] = ()
    forbidden_args: tuple[_Word, ...] = ()
    allowed_args: tuple[_Word, ...] = ()
    max_train_steps: _Limit | None = None
    allowed_env_types: tuple[_Word, ...] | None = None
    max_eval_episodes: _Limit | None = None
    max_collect_episodes: _Limit | None = None
    allowed_programs: tuple[_Word, ...] | None = None
    allowed_hub_policies: tuple[_HubRepository, ...] = ()
    allowed_hub_datasets: tuple[_HubRepository, ...] = ()
    extra_keys: dict[str, dict[str, ExtraKey]] = Field(default_factory=dict)
    proposals: ProposalBounds | None = None

    @model_validator(mode="after")
    def _extra_keys_are_flags(self) -> Self:
        for program, keys in self.extra_keys.items():
            for key in keys:
                if not KEY_PATTERN.fullmatch(key) or any(part in key for part in _NEVER):
                    raise ValueError(
                        f"extra_keys: expected the name of a flag that can be allowed, got {key!r} "
                        f"for {program!r}"
                    )
        return self


#: Rules that files of the first runs could not have.
_LATER_RULES: Final = ("allowed_hub_datasets", "allowed_args", "proposals")
_LOG = logging.getLogger(__name__)

#: Initial states of one cycle and purpose; the seed ledger hands out no more.
_MOST_COLLECTED: Final = 2**16
#: Programs that run other programs or code; refused under a rule of their own, for clear messages.
_INTERPRETERS: Final = re.compile(
    r"(?:|a|ba|c|da|fi|k|mk|pw|power|s|tc|wi|z)sh|powershell|fish|cmd|busybox|i?python|pypy?|py"
    r"|perl|php|ruby|node|deno|bun|tclsh|env|exec|nohup|nice|setsid|stdbuf|strace|sudo|doas|time"
    r"|timeout|watch|xargs|pipx?|uvx?|torchrun|accelerate"
)


class Constitution:
    """The rules of one file, and the judgements that follow; `sha256` is equal for equal rules."""

    def __init__(
        self,
        rules: Rules | Mapping[str, Any],
        suites: Mapping[str, int] | None = None,
        *,
        source: str = "the rules",
    ) -> None:
        """Obey ``rules``, and the run's own numbers of tasks of its suites.

        Raises:
            ConstitutionError: An unknown rule (``unknown_rule``), or a value that one cannot have
                (``malformed_rule``), such as a flag of a program that is not there, or has it.
        """
        try:
            self.rules = Rules.model_validate(rules)
        except ValidationError as error:
            unknown = any(detail["type"] == "extra_forbidden" for detail in error.errors())
            raise denied(
                "unknown_rule" if unknown else "malformed_rule",
                f"{source}: {' '.join(problems(error, Rules))}",
            ) from error
        self._suites = dict(suites or {})
        self.sha256: str = sha256_bytes(canonical_json(_canonical(self.rules)))
        self._kinds = {job: _with_extra_keys(job, self.rules) for job in PROGRAMS.values()}
        known = [job.title() for job in PROGRAMS.values()]
        unknown = sorted(set(self.rules.extra_keys) - set(known))
        if unknown:
            raise denied(
                "malformed_rule", f"extra_keys: expected programs of {known}, got {unknown}"
            )

    @classmethod
    def from_yaml(cls, path: Path | str) -> Self:
        """Return the constitution of the file ``path``, or a `ConstitutionError`."""
        try:
            content = read_yaml(Path(path))
        except ConfigurationError as error:
            raise denied("unreadable_rules", str(error)) from error
        return cls(content, source=str(path))

    def with_suites(self, suites: Mapping[str, int]) -> "Constitution":
        """Return the same rules for a run that says how many tasks its suites have."""
        return Constitution(self.rules, suites)

    def clear(self, job: TypedJob | Sequence[object], roots: Roots | None) -> TypedJob:
        """Return the job as it may run, or raise `ConstitutionError` with the rule's name.

        Args:
            job: What a back end wants, or the words of a whole command.
            roots: Folders of the run; None judges a command wherever its paths lie.
        """
        try:
            return self._judged(job, roots)
        except ConstitutionError as error:
            words = job.argv() if isinstance(job, TypedJob) else job
            _LOG.warning("%s; command %s", error, quoted(words))
            raise

    def check_command(self, cmd: Sequence[str]) -> Verdict:
        """Return whether `clear` would allow ``cmd``, wherever its paths lie."""
        try:
            self._judged(cmd, None)
        except ConstitutionError as error:
            return error.verdict
        return Verdict(allowed=True)

    def check_train(self, steps: int) -> Verdict:
        """Return whether a job may make ``steps`` gradient steps; the limit is inclusive."""
        return self._within("max_train_steps", steps)

    def check_eval(self, env_type: str, n_episodes: int) -> Verdict:
        """Return whether ``n_episodes``, over all tasks, may be played; limits are inclusive."""
        verdict = self.check_environment(env_type)
        return self._within("max_eval_episodes", n_episodes) if verdict.allowed else verdict

    def check_environment(self, env_type: str) -> Verdict:
        """Return whether anything may be played in ``env_type``."""
        allowed = self.rules.allowed_env_types
        if allowed is not None and env_type in allowed:
            return Verdict(allowed=True)
        reason = f"expected {_one_of(allowed)}, got {quoted(env_type)}"
        return Verdict(allowed=False, rule="allowed_env_types", reason=reason)

    def _find(self, command: Sequence[object]) -> tuple[type[TypedJob], tuple[str, ...]]:
        """Return the class of a command's program, and its arguments."""
        words = require_plain_words(command)
        if words[0] in self.rules.forbidden_commands:
            raise denied("forbidden_commands", f"expected another program, got {quoted(words[0])}")
        self._require_not_forbidden(words[1:])
        _require_bare_name(words[0])
        for length in (1, 3):
            found = PROGRAMS.get(words[:length])
            if found is not None:
                return found, words[length:]
        if words[0] not in {program[0] for program in PROGRAMS}:
            raise denied("unknown_program", f"expected a known program, got {quoted(words[0])}")
        raise denied(
            "unknown_subcommand",
            f"expected {words[0]} job collect, train, evaluate, harvest or merge, got "
            f"{quoted(' '.join(words[:3]))}",
        )

    def _judged(self, job: TypedJob | Sequence[object], roots: Roots | None) -> TypedJob:
        if isinstance(job, TypedJob):
            program, values, extra = type(job), job.values(), job.extra
        else:
            program, extra = self._find(job)
            values = dict[str, Value]()
        name, allowed = program.WORDS[0], self.rules.allowed_programs
        if name in self.rules.forbidden_commands:
            raise denied("forbidden_commands", f"expected another program, got {quoted(name)}")
        if allowed is None or name not in allowed:
            raise denied(
                "allowed_programs", f"expected {_one_of(allowed)}, got {name}; list it to allow it"
            )
        kinds = self._kinds[program]
        self._require_not_forbidden(require_plain_words((name, *extra))[1:])
        read = program.read(values, extra, kinds)
        hub = self.rules.allowed_hub_policies
        checked = {
            key: _checked(kinds[key], value, Given(key, roots, hub)) for key, value in read.items()
        }
        if roots is not None:
            require_separate(*_paths(kinds, checked))
        cleared = program.of(checked)
        words = require_plain_words(cleared.argv())[1:]
        self._require_not_forbidden(words)
        self._require_not_weakening(words, cleared)
        self._require_demand(cleared, roots)
        return cleared

    def _require_demand(self, job: TypedJob, roots: Roots | None) -> None:
        demand = job.demand()
        for name, root in demand.datasets:
            self._require_data(name, root, roots)
        if demand.env_type is not None:
            self.check_environment(demand.env_type).require()
        last = demand.last_seed
        if last is not None and last >= job.SEED_LIMIT:
            raise denied("range", f"expected seeds below {job.SEED_LIMIT}, got up to {last}")
        tasks = 1
        if demand.suites is not None and demand.env_type is not None:
            suites, task_ids = demand.suites, demand.task_ids
            tasks = tasks_played(demand.env_type, suites, task_ids, self._suites)
        if demand.steps is not None:
            self.check_train(demand.steps).require()
        if demand.evaluated is not None:
            verdict = self._within("max_eval_episodes", demand.evaluated * tasks)
            if not verdict.allowed and tasks > 1:
                reason = f"{verdict.reason}: {demand.evaluated} in each of {tasks} tasks"
                raise denied("max_eval_episodes", reason)
            verdict.require()
        if demand.collected is not None:
            self._within("max_collect_episodes", demand.collected).require()
            if demand.collected > _MOST_COLLECTED:
                raise denied(
                    "range",
                    f"expected at most {_MOST_COLLECTED} initial states, got {demand.collected}",
                )

    def _require_data(self, name: str, root: Path | None, roots: Roots | None) -> None:
        """Raise unless the dataset ``name`` is local or may come from the hub.

        A folder that holds a dataset is one; one that will hold it is local by its name.
        """
        named = self.rules.allowed_hub_datasets
        local = root is not None and (
            roots is None or name.startswith("local/") or (root / "meta" / "info.json").is_file()
        )
        if not local and not listed_on_hub(name, named):
            raise denied(
                "allowed_hub_datasets",
                f"expected data in a folder, or {_one_of(named)}, got {quoted(name)}",
            )

    def _require_not_forbidden(self, arguments: Sequence[str]) -> None:
        for word in arguments:
            for beginning in self.rules.forbidden_args:
                if word.startswith(beginning):
                    raise denied(
                        "forbidden_args",
                        f"expected nothing like {beginning}..., got {quoted(word)}",
                    )

    def _require_not_weakening(self, arguments: Sequence[str], job: TypedJob) -> None:
        for word in arguments:
            if word.startswith(job.WEAKENING) and not word.startswith(self.rules.allowed_args):
                raise denied(
                    "allowed_args",
                    "expected nothing that weakens the guard, the suite or the seeds, got "
                    f"{quoted(word)}; list it under allowed_args to allow it",
                )

    def _within(self, name: str, count: int) -> Verdict:
        limit: int | None = getattr(self.rules, name)
        if limit is None:
            reason = "expected the rule in the file, got none; what it bounds is refused without it"
        elif type(count) is not int or count < 1:  # True is an int, too
            reason = f"expected a whole number from 1, got {quoted(count)}"
        elif count > limit:
            reason = f"expected at most {limit}, got {count}"
        else:
            return Verdict(allowed=True)
        return Verdict(allowed=False, rule=name, reason=reason)


def _checked(kind: Kind, value: Value, given: Given) -> Value:
    """Return ``value`` as it may be used; its text must have one reading, whoever made it."""
    value = kind(value, given)
    if value is not None:
        require_value(given.key, spelled(value))
    return value


def _one_of(names: Sequence[str] | None) -> str:
    """Return what a rule that lists names expects."""
    return f"one of {list(names)}" if names else "an entry in the file of rules, which has none"


def _require_bare_name(program: str) -> None:
    if not program.isascii():
        raise denied("look_alike", f"expected a program in ASCII, got {quoted(program)}")
    if "/" in program or "\\" in program or program.startswith((".", "~")):
        raise denied("program_path", f"expected a bare name, got the path {quoted(program)}")
    stem = PurePosixPath(program.lower()).name.removesuffix(".exe").rstrip("0123456789.")
    if _INTERPRETERS.fullmatch(stem):
        raise denied("interpreter", f"expected no interpreter or wrapper, got {quoted(program)}")


def _paths(
    kinds: Mapping[str, Kind], values: Mapping[str, Value]
) -> tuple[list[tuple[str, Path]], list[tuple[str, Path]]]:
    """Return what is read and what is written, each with its flag."""
    read: list[tuple[str, Path]] = []
    written: list[tuple[str, Path]] = []
    for key, value in values.items():
        places = written if kinds[key] is write_path else read
        items = cast("tuple[Value, ...]", value) if isinstance(value, tuple) else (value,)
        places += [(key, path) for path in items if isinstance(path, Path)]
    return read, written


def _with_extra_keys(job: type[TypedJob], rules: Rules) -> dict[str, Kind]:
    kinds = job.kinds()
    taken = {fold(key) for key in kinds}
    for key, entry in sorted(rules.extra_keys.get(job.title(), {}).items()):
        if fold(key) in taken:
            raise denied(
                "malformed_rule",
                f"extra_keys: expected new flags of {job.title()}, got --{key}, which it has",
            )
        taken.add(fold(key))
        kinds[key] = entry.as_kind()
    return kinds


def _canonical(rules: Rules) -> dict[str, Any]:
    """Return ``rules`` with every list sorted: their order means nothing.

    Rules that came later than the first runs count only where a file has them, so that a file keeps
    its digest.
    """
    content: dict[str, Any] = rules.model_dump(mode="json")
    content = {
        n: sorted(cast("list[str]", v)) if isinstance(v, list) else v for n, v in content.items()
    }
    return {name: value for name, value in content.items() if value or name not in _LATER_RULES}


_SHIPPED: Final = "loop/constitution.yaml"


def load_constitution(path: Path | None, instructions: Path | None = None) -> Constitution:
    """Return the constitution of a file; None for the rules that the package ships.

    ``instructions`` is a file of suites that the run describes itself, whose tasks count; see
    `cadenza.loop.constitution.suites`.

    Raises:
        ConstitutionError: The file of rules is missing or malformed.
        ConfigurationError: The other file is.
    """
    rules = Constitution.from_yaml(path or shipped_config(_SHIPPED))
    return rules if instructions is None else rules.with_suites(suite_sizes(instructions))
