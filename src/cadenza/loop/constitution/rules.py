"""The file of rules: what it may say, and what it means that it does not say something.

A limit that the file lacks is no permission: what it would bound is refused. Names that are not
rules are refused too, since a misspelt prohibition would otherwise prohibit nothing.
"""

from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from cadenza.core.errors import ConfigurationError
from cadenza.core.yaml_files import read_yaml
from cadenza.loop.constitution.flags import KEY_PATTERN, denied
from cadenza.loop.constitution.kinds import (
    MAX_INTEGER,
    NAME,
    Boolean,
    Choice,
    FilePath,
    Integer,
    Kind,
    Number,
    Text,
)
from cadenza.loop.constitution.programs import LimitName
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


class ExtraKey(BaseModel):
    """A flag that a file of rules adds to a program: its kind, and what that allows."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

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
            "integer": Integer(int(self.low), int(high)),
            "number": Number(self.low, high),
            "boolean": Boolean(),
            "name": NAME,
            "text": Text(),
            "choice": Choice(self.choices),
            "read_path": FilePath(),
        }
        return kinds[self.kind]


class ProposalBounds(BaseModel):
    """What proposals may move beside the data; what is not named stays as configured.

    Attributes:
        learning_rate: Least and largest step size at the first update.
        steps: Least and most gradient steps.
        batch_size: Least and most samples per step.
        rungs: Policy types, of those of the run's ladder.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

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


class Rules(BaseModel):
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

    model_config = ConfigDict(frozen=True, extra="forbid")

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

    def limit(self, name: LimitName) -> int | None:
        """Return the limit ``name``; None where the file has none."""
        return getattr(self, name)


def read_rules(path: Path) -> Rules:
    """Return the rules of the YAML file ``path``.

    Raises:
        ConstitutionError: It is missing, no YAML, names an unknown rule (``unknown_rule``) or gives
            one a value it cannot have (``malformed_rule``).
    """
    try:
        content = read_yaml(path)
    except ConfigurationError as error:
        raise denied("unreadable_rules", str(error)) from error
    return parse_rules(content, source=str(path))


def parse_rules(content: object, *, source: str) -> Rules:
    """Return the rules that ``content`` gives by name; errors as `read_rules`."""
    try:
        return Rules.model_validate(content)
    except ValidationError as error:
        unknown = any(detail["type"] == "extra_forbidden" for detail in error.errors())
        raise denied(
            "unknown_rule" if unknown else "malformed_rule",
            f"{source}: {' '.join(problems(error, Rules))}",
        ) from error
