"""Field types and the base class that every archive model shares."""

from typing import Annotated, Final, Literal

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

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def unique_seeds(name: str, seeds: list[int]) -> list[int]:
    """Return ``seeds`` if they are a non-empty list of different integers."""
    if not seeds or len(set(seeds)) != len(seeds):
        raise ValueError(f"{name}: expected at least one seed and no repeats, got {seeds}.")
    return seeds
