"""The three tables as one value, and as a document with hashes.

Table 1, assumptions: what the guarantee rests on, and in how many steps it did not hold.
    A1  the gradient of the barrier is bounded
    A2  the error of the partner forecast is bounded
    A3  some action meets every row
    A4  is reserved for the limits of ISO 10218-2.
    A5  the ego moves as its control model says
Table 2, conditions: violations and fallbacks of each way of running.
Table 3, gap: how far lambda lies from that of an oracle that forecasts perfectly and does not
    learn; what the adaptation costs.
Details: figures that the tables have no column for. They have a key and a hash of their own, so a
    program that knows only the tables reads the file unchanged. None: not recorded.

Every record checks itself and is immutable. Field names and their order are a file format.

Document:      ``schema_version``, ``table_1`` ... ``table_3``, ``content_hash``, and, where the
               report has details, ``details`` and ``details_hash``.
content_hash:  SHA-256 of the canonical text of the document without its last three keys, exactly as
               stored: a file of version 1 is checked as version 1, and upgraded only then.
details_hash:  SHA-256 of the canonical text of ``content_hash`` and ``details``, so details cannot
               be moved to another report.
Versions:      1: without slack in table 2. 2: with it. 3: lambda telemetry by pair; same tables.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields, replace
from functools import partial
from numbers import Integral, Real
from typing import Annotated, Any, Final, Protocol, Self, TypeAlias, cast

from cadenza.core.errors import InputError, UnknownNameError
from cadenza.core.files import sha256_bytes
from cadenza.safety.errors import ReportError

#: Version that is written; older ones are upgraded when they are read.
SCHEMA_VERSION: Final = 3
_VERSIONS: Final = [1, 2, 3]
_TABLES: Final = ("table_1", "table_2", "table_3")
_OUTSIDE_CONTENT: Final = ("content_hash", "details", "details_hash")
#: Whether partners were forecast by the ground truth or by a predictor.
PREDICTORS: Final = ("gt", "pred")
#: Whether lambda adapted.
CONFORMAL_MODES: Final = ("noLearn", "Learn")

#: Returns the value of the field of that name, or raises InputError.
_Check: TypeAlias = Callable[[str, Any], Any]


def _text(name: str, value: object) -> str:
    """Return ``value``, which must be UTF-8 text of at least one character."""
    if not isinstance(value, str) or not value:
        raise InputError(f"{name}: expected text, got {value!r}.")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(f"{name}: expected text that UTF-8 can express, got {value!r}.") from error
    return value


def _count(name: str, value: object, high: int | None = None) -> int:
    """Return ``value`` as a count, >= 0 and at most ``high``."""
    limit = "" if high is None else f" and <= {high}"
    whole = isinstance(value, Integral) or (isinstance(value, float) and value.is_integer())
    if isinstance(value, bool) or not whole:
        raise InputError(f"{name}: expected a whole number >= 0{limit}, got {value!r}.")
    count = int(cast("int", value))
    if count < 0 or (high is not None and count > high):
        raise InputError(f"{name}: expected a count >= 0{limit}, got {count}.")
    return count


def _number(name: str, value: object, least: str = "") -> float:
    """Return ``value`` as a finite float, ``least`` being "", ">= 0" or "> 0" and a unit."""
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise InputError(f"{name}: expected a finite number, got {value!r}.")
    number = float(value)
    if (least and number < 0.0) or (least.startswith("> 0") and number == 0.0):
        raise InputError(f"{name}: expected {least}, got {number}.")
    return number


def _optional(check: _Check) -> _Check:
    """Return a check that lets None pass, and takes NaN for it."""

    def checked(name: str, value: Any) -> Any:
        missing = value is None or (isinstance(value, float) and math.isnan(value))
        return None if missing else check(name, value)

    return checked


def _choice(choices: tuple[str, ...], name: str, value: object) -> object:
    if value not in choices:
        raise InputError(f"{name}: expected one of {', '.join(choices)}, got {value!r}.")
    return value


def _counts_by_name(name: str, value: Any) -> Any:
    """Return ``value``, which must be counts by text."""
    if not isinstance(value, Mapping):
        raise InputError(f"{name}: expected an object, got {value!r}.")
    for key, count in cast("Mapping[Any, Any]", value).items():
        _text(name, key)
        _count(f"{name}[{key!r}]", count)
    return cast("Any", value)


def _each(check: _Check, name: str, values: Any) -> tuple[Any, ...]:
    return tuple(check(name, value) for value in values)


#: How a field is checked that says nothing else.
_BY_TYPE: Final[Mapping[Any, _Check]] = {
    str: _text,
    int: _count,
    float: partial(_number, least="a slack >= 0"),
    str | None: _optional(_text),
    int | None: _optional(_count),
    float | None: _optional(partial(_number, least=">= 0")),
    Mapping[str, int] | None: _optional(_counts_by_name),
    tuple[int, ...]: partial(_each, _count),
    tuple[str, ...]: partial(_each, _text),
}


class _Stored:
    """A record whose JSON form is its fields; it raises InputError for a field out of range."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for each in fields(cast("Any", self)):
            check = next(iter(getattr(each.type, "__metadata__", ())), _BY_TYPE.get(each.type))
            if check is not None:
                value = check(f"{type(self).__name__}.{each.name}", getattr(self, each.name))
                object.__setattr__(self, each.name, value)

    def _at_most(self, high: int | None, *names: str) -> None:
        """Refuse counts of steps that are larger than ``high``, if that is known."""
        for name in names:
            _optional(partial(_count, high=high))(
                f"{type(self).__name__}.{name}", getattr(self, name)
            )

    def to_jsonable(self) -> dict[str, Any]:
        """Return the record as JSON values."""
        values = asdict(cast("Any", self))
        return {k: list(cast("Any", v)) if isinstance(v, tuple) else v for k, v in values.items()}

    @classmethod
    def from_jsonable(cls, payload: Mapping[str, Any]) -> Self:
        """Return what `to_jsonable` described; other keys are ignored.

        Raises:
            UnknownNameError: A key of a field without a default is missing.
            InputError: A value is malformed.
        """
        known = fields(cast("Any", cls))
        names = [field.name for field in known if field.default is MISSING]
        missing = [name for name in names if name not in payload]
        if missing:
            raise UnknownNameError(
                f"{cls.__name__}: expected the keys {', '.join(names)}, missing "
                f"{', '.join(missing)}."
            )
        values = {f.name: payload[f.name] for f in known if f.name in payload}
        for name in (f.name for f in known if f.default == () and f.name in values):
            if not isinstance(values[name], list):
                raise InputError(f"{cls.__name__}.{name}: expected a list, got {values[name]!r}.")
            values[name] = tuple(values[name])
        return cls(**values)


@dataclass(frozen=True, slots=True)
class AssumptionRow(_Stored):
    """One row of table 1."""

    assumption: str  # Label: A1, A2, A3, A5, or a further one
    description: str  # What is assumed and how it was counted
    violations: int  # Steps in which it did not hold, 0 ... ``n_steps``.
    n_steps: int  # Steps in which it was checked, >= 0

    def __post_init__(self) -> None:
        _Stored.__post_init__(self)
        self._at_most(self.n_steps, "violations")


@dataclass(frozen=True, slots=True)
class ConditionRow(_Stored):
    """One row of table 2.

    Attributes:
        predictor: How partners were forecast, one of `PREDICTORS`.
        conformal_mode: Whether lambda adapted, one of `CONFORMAL_MODES`.
        vendor_compliance: Compliance statement of the robot's vendor; None without one.
        n_episodes: Episodes, >= 0.
        violations: Steps that began outside the safe set, >= 0.
        fallback_fires: Steps in which braking replaced the action, >= 0.
        max_slack: Largest slack of the inner filter (OSCBF), >= 0; 0 where it does not run.
        slack_l2: Its mean Euclidean norm per step, >= 0.
    """

    predictor: Annotated[str, partial(_choice, PREDICTORS)]
    conformal_mode: Annotated[str, partial(_choice, CONFORMAL_MODES)]
    vendor_compliance: str | None
    n_episodes: int
    violations: int
    fallback_fires: int
    max_slack: float = 0.0
    slack_l2: float = 0.0

    def __post_init__(self) -> None:
        _Stored.__post_init__(self)
        if self.n_episodes == 0 and (self.violations or self.fallback_fires):
            raise InputError(
                "ConditionRow: expected no violations and no fallbacks without an episode, got "
                f"{self.violations} and {self.fallback_fires}."
            )


@dataclass(frozen=True, slots=True)
class GapRow(_Stored):
    """One row of table 3. NaN means missing: it becomes None, and null in the file."""

    condition: str  # Name of the condition
    #: Mean of lambda over its steps, m/s^2; None if not recorded
    lambda_mean: Annotated[float | None, _optional(_number)]
    lambda_var: float | None  # Variance over its steps, (m/s^2)^2, >= 0; None if not recorded
    #: Mean of lambda of the oracle, m/s^2; None without an oracle run
    oracle_lambda_mean: Annotated[float | None, _optional(_number)]

    @property
    def gap(self) -> float | None:
        """Distance of the two means, m/s^2; None if either is missing."""
        if self.lambda_mean is None or self.oracle_lambda_mean is None:
            return None
        return abs(self.lambda_mean - self.oracle_lambda_mean)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionDetails(_Stored):
    """More about one row of table 2."""

    condition: str  # Name of the condition
    n_steps: int | None = None  # Filtered steps
    violating_episodes: int | None = None  # Episodes with a step outside the safe set
    contact_episodes: int | None = None  # Episodes in which the ego touched somebody
    infeasible_steps: int | None = None  # Steps without an action that meets every row
    uncertified_steps: int | None = None  # Steps that the guarantee does not cover
    #: Steps in which the executed action differs from the nominal one
    intervened_steps: int | None = None
    min_distance_m: float | None = None  # Smallest distance of two centres, m
    #: Mean distance between executed and nominal action over the steps that were changed, unit of
    #: the action
    intervention_mean: float | None = None
    intervention_peak: float | None = None  # Largest such distance
    slack_peak: float | None = None  # Most by which an executed action missed a row, m/s^2
    latency_p50_ms: float | None = None  # Median time of one filter step, ms
    latency_p99_ms: float | None = None  # Its 99 % quantile, ms
    #: Dangerous pairs in steps that braked, by reason
    brake_reasons: Mapping[str, int] | None = None

    def __post_init__(self) -> None:
        _Stored.__post_init__(self)
        self._at_most(self.n_steps, "infeasible_steps", "uncertified_steps", "intervened_steps")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportDetails(_Stored):
    """Where the numbers of a report come from."""

    #: One entry per row of table 2, in its order; empty if there are none
    conditions: tuple[ConditionDetails, ...] = ()
    seeds: tuple[int, ...] = ()  # Seeds the numbers were made with
    config_hash: str | None = None  # Hash of the configuration
    solver: str | None = None  # Name of the solver
    solver_version: str | None = None  # Its version
    #: Control step, s
    control_timestep_s: Annotated[float | None, _optional(partial(_number, least="> 0 s"))] = None
    predictor_kind: str | None = None  # How partners were forecast
    notes: tuple[str, ...] = ()  # What a reader must know, one sentence each

    @classmethod
    def from_jsonable(cls, payload: Mapping[str, Any]) -> Self:
        """Return what `to_jsonable` described; other keys are ignored, missing ones are None.

        Raises:
            UnknownNameError: A condition has no name.
            InputError: A value is malformed.
        """
        details = super(ReportDetails, cls).from_jsonable(payload)
        for entry in details.conditions:
            if not isinstance(entry, dict):
                raise InputError(f"ReportDetails.conditions: expected objects, got {entry!r}.")
        return replace(
            details,
            conditions=tuple(map(ConditionDetails.from_jsonable, cast("Any", details.conditions))),
        )


class SlackResult(Protocol):
    """The part of one OSCBF step that table 2 needs; `OSCBFResult` has it."""

    @property
    def max_slack(self) -> float:
        """Largest slack of the step, >= 0."""
        ...

    @property
    def slack_l2(self) -> float:
        """Euclidean norm of its slack, >= 0."""
        ...


@dataclass(frozen=True, slots=True)
class SlackAggregate:
    """Slack over the steps of one condition; 0 without steps."""

    max_slack: float  # Largest of any step
    slack_l2: float  # Mean over steps of the norm


def aggregate_oscbf_slack(results: Iterable[SlackResult]) -> SlackAggregate:
    """Return the slack over ``results``, which are read once, in any order."""
    largest, norm_sum, count = 0.0, 0.0, 0
    for result in results:
        largest = max(largest, result.max_slack)
        norm_sum += result.slack_l2
        count += 1
    return SlackAggregate(max_slack=largest, slack_l2=norm_sum / count if count else 0.0)


def make_condition_row(
    *,
    predictor: str,
    conformal_mode: str,
    vendor_compliance: str | None,
    n_episodes: int,
    violations: int,
    fallback_fires: int,
    oscbf_results: Iterable[SlackResult] = (),
) -> ConditionRow:
    """Return a row of table 2 with the slack of its OSCBF steps, one result per step."""
    slack = aggregate_oscbf_slack(oscbf_results)
    counts = (n_episodes, violations, fallback_fires)
    return ConditionRow(
        predictor, conformal_mode, vendor_compliance, *counts, slack.max_slack, slack.slack_l2
    )


@dataclass(frozen=True, slots=True)
class ThreeTableReport:
    """A safety result.

    Attributes:
        table_1: Assumptions.
        table_2: Conditions.
        table_3: Conservativeness gap.
        schema_version: `SCHEMA_VERSION`; older files are upgraded when they are read.
        details: Where the numbers come from; None without.

    Raises:
        InputError: Another version, or details of other conditions than those of table 2.
    """

    table_1: tuple[AssumptionRow, ...]
    table_2: tuple[ConditionRow, ...]
    table_3: tuple[GapRow, ...]
    schema_version: int = SCHEMA_VERSION
    details: ReportDetails | None = None

    def __post_init__(self) -> None:
        for name in _TABLES:
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if self.schema_version != SCHEMA_VERSION:
            raise InputError(
                f"ThreeTableReport: expected schema_version {SCHEMA_VERSION}, got "
                f"{self.schema_version!r}; parse_three_tables upgrades older files."
            )
        described = 0 if self.details is None else len(self.details.conditions)
        if described not in (0, len(self.table_2)):
            raise InputError(
                "ThreeTableReport: expected details of each of the "
                f"{len(self.table_2)} conditions of table 2 or of none, got {described}."
            )

    def to_jsonable(self) -> dict[str, Any]:
        """Return version and tables as JSON values, without details and hashes."""
        return {
            "schema_version": self.schema_version,
            **{name: [row.to_jsonable() for row in getattr(self, name)] for name in _TABLES},
        }

    def to_canonical_json(self) -> str:
        """Return version and tables as canonical text: sorted keys, indent 2, ASCII."""
        return canonical_text(self.to_jsonable())

    def content_hash(self) -> str:
        """Return the SHA-256 of `to_canonical_json`, hex."""
        return text_hash(self.to_jsonable())

    def to_document(self) -> dict[str, Any]:
        """Return everything that a file holds, hashes included."""
        content_hash = self.content_hash()
        document = {**self.to_jsonable(), "content_hash": content_hash}
        if self.details is not None:
            details = self.details.to_jsonable()
            document["details"] = details
            document["details_hash"] = details_hash(content_hash, details)
        return document

    @classmethod
    def from_jsonable(
        cls, payload: Mapping[str, Any], *, source: str = "three-table report"
    ) -> "ThreeTableReport":
        """Return the report of a payload of any known version; hashes are not looked at.

        Raises:
            ReportError: Unknown version or a malformed table.
            UnknownNameError: A row lacks a field.
            InputError: A field is out of range.
        """
        version = _require_version(payload, source)
        for name in _TABLES:
            table = payload.get(name)
            if not isinstance(table, list) or not all(isinstance(row, dict) for row in table):  # pyright: ignore[reportUnknownVariableType] -- checked here
                raise ReportError(f"{source}: {name}: expected a list of objects, got {table!r}.")
        conditions = payload["table_2"]
        if version == 1:  # the inner filter was not recorded; its slack is 0
            conditions = [{"max_slack": 0.0, "slack_l2": 0.0, **row} for row in conditions]
        details = payload.get("details")
        if details is not None and not isinstance(details, dict):
            raise ReportError(f"{source}: details: expected an object, got {details!r}.")
        return cls(
            table_1=tuple(AssumptionRow.from_jsonable(row) for row in payload["table_1"]),
            table_2=tuple(ConditionRow.from_jsonable(row) for row in conditions),
            table_3=tuple(GapRow.from_jsonable(row) for row in payload["table_3"]),
            details=None
            if details is None
            else ReportDetails.from_jsonable(cast("Mapping[str, Any]", details)),
        )


def canonical_text(payload: Mapping[str, Any]) -> str:
    """Return ``payload`` as JSON: sorted keys, indent 2, ASCII; equal values, equal text.

    Raises:
        ValueError: It holds NaN or an infinity.
    """
    return json.dumps(payload, sort_keys=True, indent=2, separators=(",", ": "), allow_nan=False)


def text_hash(payload: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the canonical text, lower-case hex."""
    return sha256_bytes(canonical_text(payload).encode("utf-8"))


def details_hash(content_hash: str, details: Mapping[str, Any]) -> str:
    """Return the hash that ties details to the report with ``content_hash``."""
    return text_hash({"content_hash": content_hash, "details": details})


def require_intact(document: Mapping[str, Any], *, require_hash: bool, source: str) -> None:
    """Raise ReportError unless the document is of a known version and its hashes hold.

    ``require_hash``: a missing hash is an error, too; ``source`` is how messages call the document.
    """
    _require_version(document, source)
    content = {key: value for key, value in document.items() if key not in _OUTSIDE_CONTENT}
    stored = document.get("content_hash")
    _compare("content_hash", stored, text_hash(content), require_hash, source)
    if "details" in document:
        expected = details_hash(text_hash(content), document["details"])
        _compare("details_hash", document.get("details_hash"), expected, require_hash, source)
    elif "details_hash" in document:
        raise ReportError(
            f"{source}: expected the details that details_hash belongs to, got none; they were "
            "removed after the report was written."
        )


def _require_version(payload: Mapping[str, Any], source: str) -> int:
    version = payload.get("schema_version")
    if isinstance(version, bool) or not isinstance(version, int) or version not in _VERSIONS:
        raise ReportError(
            f"{source}: schema_version: expected one of {_VERSIONS}, got {version!r}; a newer file "
            "needs a newer version of this package."
        )
    return version


def _compare(name: str, stored: object, expected: str, require_hash: bool, source: str) -> None:
    if stored is None and not require_hash:
        return
    if stored is None:
        raise ReportError(
            f"{source}: expected a {name}, got none: nothing shows that the numbers are those that "
            "were written; pass require_hash=False to read it all the same."
        )
    if stored != expected:
        raise ReportError(
            f"{source}: {name} mismatch: expected {expected} for what the file holds, got "
            f"{stored!r}; it was changed after it was written."
        )
