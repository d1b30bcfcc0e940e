"""One evaluation episode: its record and its line-per-episode file format."""

from collections.abc import Iterable
from typing import Any, Final, Self, cast

from pydantic import Field, StrictBool, ValidationError, field_validator, model_validator

from cadenza.core.errors import InputError
from cadenza.core.files import canonical_json
from cadenza.evaluation.json_values import require_json_object
from cadenza.evaluation.schema_types import (
    Archive,
    Count,
    Finite,
    Identifier,
    Integer,
    NonNegative,
)

#: Typed fields that older archives kept in ``metadata``, with the keys they used there.
_LIFTED_KEYS: Final = {
    "condition": ("condition",),
    "partner": ("partner", "member"),
    "n_steps": ("n_steps",),
}


class EpisodeResult(Archive):
    """One evaluation episode.

    ``condition``, ``partner`` and ``n_steps`` are also read from ``metadata`` of older archives;
    the typed field is the one to use, and the two must not disagree.

    Attributes:
        seed: Root seed; the cluster of every interval.
        episode_idx: Index inside the (seed, condition) cell.
        initial_state_seed: Seed of the initial state; equal seeds pair episodes across conditions.
        success: Whether the task's success predicate held.
        constraint_violation_peak: Largest barrier gap of the episode, 0 when none was violated.
        fallback_fired: Steps on which the braking fallback acted.
        force_peak: Peak contact or coupling force, N; ``None`` where the task has no such channel.
        metadata: Anything else that JSON can express.
        condition: Condition identifier, e.g. ``"filter_on"``.
        partner: Partner identifier.
        n_steps: Control steps played.
        truncated: Whether the time limit, not the task, ended the episode.
        episode_return: Undiscounted sum of rewards.
        contact: Whether the ego touched anyone.
        min_distance_m: Smallest centre distance between the ego and anyone, m.
        goal_distance_m: Distance of the ego to its goal at the end, m.
        violating_steps: Steps on which a barrier constraint was violated.
        interventions: Steps on which the filter changed the action; ``None`` without a filter.
        intervention_mean: Mean size of those changes, in the unit of the action.
        intervention_peak: Largest such change, in the unit of the action.
        infeasible_steps: Steps on which no action satisfied every constraint.
        uncertified_steps: Steps on which the filter acted without its guarantee.
    """

    seed: Integer
    episode_idx: Count
    initial_state_seed: Integer
    success: StrictBool
    constraint_violation_peak: Finite = 0.0
    fallback_fired: Count = 0
    force_peak: Finite | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    condition: Identifier | None = None
    partner: Identifier | None = None
    n_steps: Count | None = None
    truncated: StrictBool | None = None
    episode_return: Finite | None = None
    contact: StrictBool | None = None
    min_distance_m: NonNegative | None = None
    goal_distance_m: NonNegative | None = None
    violating_steps: Count | None = None
    interventions: Count | None = None
    intervention_mean: NonNegative | None = None
    intervention_peak: NonNegative | None = None
    infeasible_steps: Count | None = None
    uncertified_steps: Count | None = None

    @model_validator(mode="before")
    @classmethod
    def _lift_metadata(cls, data: Any) -> Any:
        """Fill typed fields from the metadata keys that older archives used."""
        if not isinstance(data, dict):
            return data
        values: dict[str, Any] = {**data}
        raw: object = values.get("metadata")
        if not isinstance(raw, dict):
            return values
        metadata = cast("dict[str, Any]", raw)
        for field, keys in _LIFTED_KEYS.items():
            for key in keys:
                if key not in metadata:
                    continue
                old: Any = metadata[key]
                if field == "n_steps" and not isinstance(old, int):
                    continue  # some archives stored numbers as text
                if values.get(field) is None:
                    values[field] = old
                elif values[field] != old:
                    raise ValueError(
                        f"EpisodeResult: expected {field} and metadata[{key!r}] to agree, got "
                        f"{values[field]!r} and {old!r}; drop the metadata entry."
                    )
        return values

    @field_validator("metadata")
    @classmethod
    def _metadata_is_json(cls, value: dict[str, Any]) -> dict[str, Any]:
        require_json_object("EpisodeResult.metadata", value)
        return value

    @model_validator(mode="after")
    def _counts_fit_the_episode(self) -> Self:
        if self.n_steps is None:
            return self
        for name in ("violating_steps", "interventions", "infeasible_steps", "uncertified_steps"):
            count: int | None = getattr(self, name)
            if count is not None and count > self.n_steps:
                raise ValueError(
                    f"EpisodeResult.{name}: expected at most n_steps = {self.n_steps}, got {count}."
                )
        return self


def encode_episodes(episodes: Iterable[EpisodeResult]) -> bytes:
    """Return one canonical JSON object per line: equal episodes, equal bytes."""
    lines = [canonical_json(_without_unset(episode)) for episode in episodes]
    return b"".join(line + b"\n" for line in lines)


def decode_episodes(data: bytes, *, source: str) -> list[EpisodeResult]:
    """Read what `encode_episodes` wrote.

    Args:
        data: UTF-8 lines, each a JSON object, the last one terminated as well.
        source: File name for messages.

    Raises:
        InputError: A line is torn, not JSON or not an episode; the message gives its number.
    """
    if data and not data.endswith(b"\n"):
        raise InputError(f"{source}: expected the last line to end, got a torn line; restore it.")
    episodes: list[EpisodeResult] = []
    for number, line in enumerate(data.split(b"\n")[:-1], start=1):
        try:
            episodes.append(EpisodeResult.model_validate_json(line))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "line"
            raise InputError(
                f"{source} line {number}: expected an episode, got {first['msg']} at {where}; "
                "restore the file."
            ) from error
    return episodes


def _without_unset(episode: EpisodeResult) -> dict[str, Any]:
    """Return the fields of ``episode`` that hold something; ``None`` is every default of those."""
    fields = episode.model_dump(mode="json")
    return {name: value for name, value in fields.items() if value is not None}
