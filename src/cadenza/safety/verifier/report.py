"""What a verification found, as one record with equal bytes for equal runs.

The file holds no times and no paths: the same configuration and code give the same bytes.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cadenza.core.files import atomic_write_bytes, canonical_json, sha256_bytes
from cadenza.core.provenance import RunContext
from cadenza.safety.verifier.config import VerifierConfig
from cadenza.safety.verifier.episodes import EpisodeRecord
from cadenza.safety.verifier.results import CONFIDENCE, Counts, ScenarioResult, failures, total

#: Version of the file's layout.
SCHEMA_VERSION: Final = 1
#: Names of the files in a result folder.
REPORT_NAME: Final = "verification.json"
PICTURE_NAME: Final = "worst_episode.png"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VerificationReport:
    """Outcome of one verification.

    Attributes:
        config: What was run.
        origin: Code, dependencies and seed.
        results: One row per scenario.
        worst: The episode with the smallest free distance; with one partner, if there were such.
    """

    config: VerifierConfig
    origin: RunContext
    results: list[ScenarioResult]
    worst: EpisodeRecord

    @property
    def failures(self) -> list[str]:
        """What contradicts the claim, one sentence each."""
        return failures(self.results)

    @property
    def holds(self) -> bool:
        """Whether the claim holds."""
        return not self.failures

    def single_adversarial(self) -> Counts:
        """Return the total of the adversarial scenarios with one partner."""
        return total([r for r in self.results if r.partners == 1 and r.kind == "adversarial"])

    def everything(self) -> Counts:
        """Return the total of all scenarios."""
        return total(self.results)

    def stationary(self) -> Counts:
        """Return the total of the scenarios with a standing partner."""
        return total([r for r in self.results if r.kind == "stationary"])

    def several(self, partners: int | None = None) -> Counts:
        """Return the total of the scenarios with ``partners`` partners; None: with two or more."""
        return total([r for r in self.results if r.partners > 1 and partners in (None, r.partners)])

    def to_jsonable(self) -> dict[str, Any]:
        """Return the report as JSON values, without its hash."""
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": "safety_verification",
            "holds": self.holds,
            "failures": self.failures,
            "confidence": CONFIDENCE,
            "config": self.config.to_jsonable(),
            "origin": {**self.origin.log_fields(), **self.origin.origin_fields()},
            "scenarios": [result.to_jsonable() for result in self.results],
            "totals": {
                "one_partner_adversarial": self.single_adversarial().to_jsonable(),
                "one_partner_stationary": self.stationary().to_jsonable(),
                "several_partners": self.several().to_jsonable(),
            },
            "worst_episode": self.worst.summary(),
        }

    def to_bytes(self) -> bytes:
        """Return the file: canonical JSON with the SHA-256 of the rest as ``content_hash``."""
        values = self.to_jsonable()
        digest = sha256_bytes(canonical_json(values))
        return canonical_json({**values, "content_hash": digest}) + b"\n"

    def save(self, folder: Path) -> tuple[Path, Path]:
        """Write report and picture below ``folder``, each in one durable step; return their paths.

        Raises:
            StorageError: The file system refused.
        """
        from cadenza.safety.verifier.picture import draw_episode

        report, picture = folder / REPORT_NAME, folder / PICTURE_NAME
        atomic_write_bytes(picture, draw_episode(self.worst, self.config))
        atomic_write_bytes(report, self.to_bytes())
        return report, picture
