"""Field types and the base class that every archive model shares."""

import math
from typing import Annotated, Any, Final, Literal, cast

from pydantic import BaseModel, ConfigDict, Field

#: Version of the result archive; independent of the packet and safety-report versions.
SCHEMA_VERSION: Final = 3

#: Identity of the estimator behind archives that carry none: the interquartile mean of pooled
#: episodes with a looped two-level percentile bootstrap.
LEGACY_ESTIMATOR: Final = "iqm/cluster/percentile-loop/v0"

#: Fewest resamples whose 2.5 % tail holds enough replicates (25) for a stable bound.
MIN_RESAMPLES: Final = 1000

SubStage = Literal["1a", "1b", "2", "3"]

Integer = Annotated[int, Field(strict=True)]
Count = Annotated[int, Field(strict=True, ge=0)]
Finite = Annotated[float, Field(strict=True, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=0.0)]
Rate = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=0.0, le=1.0)]
Identifier = Annotated[str, Field(min_length=1)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
PartnerHash = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
SchemaVersion = Annotated[int, Field(strict=True, ge=1, le=SCHEMA_VERSION)]


class Archive(BaseModel):
    """Settings every archive model shares."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def unique_seeds(name: str, seeds: list[int]) -> list[int]:
    """Return ``seeds`` if they are a non-empty list of different integers."""
    if not seeds or len(set(seeds)) != len(seeds):
        raise ValueError(f"{name}: expected at least one seed and no repeats, got {seeds}.")
    return seeds


def require_json_object(name: str, value: dict[str, Any]) -> None:
    """Raise unless ``value`` survives a round trip through strict JSON.

    Args:
        name: How the message calls the value.
        value: A mapping of strings to anything.

    Raises:
        ValueError: A key is not text, a number is not finite, or a type has no JSON form.
    """
    unnamed = [key for key in cast("dict[object, object]", value) if not isinstance(key, str)]
    if unnamed:
        raise ValueError(f"{name}: expected text keys, got {unnamed[0]!r}.")
    for key, item in value.items():
        _require_json(f"{name}[{key!r}]", item)


def _require_json(name: str, value: object) -> None:
    """Raise unless ``value`` has an exact JSON form."""
    if value is None or isinstance(value, bool | int | str):
        return
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{name}: expected a finite number, got {value}.")
        return
    if isinstance(value, dict):
        require_json_object(name, cast("dict[str, Any]", value))
        return
    if isinstance(value, list | tuple):
        for index, item in enumerate(cast("list[object]", value)):
            _require_json(f"{name}[{index}]", item)
        return
    raise ValueError(
        f"{name}: expected a value JSON can express, got {type(value).__name__}; convert it first."
    )
