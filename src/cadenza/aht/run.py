"""One run of `cadenza.aht.train`: what it works with, and what identifies it."""

from dataclasses import dataclass
from typing import Any, Literal

from cadenza.aht.config import EgoAHTConfig
from cadenza.aht.run_files import RunFiles, RunStatus
from cadenza.aht.safety_station import AnyDriver
from cadenza.aht.types import Evaluator, ProgressCallback, RunOutcome, TrainerFactory
from cadenza.core.provenance import RunContext
from cadenza.core.types import PartnerLike


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one call of `train` works with; ``upstream_list`` reproduces upstream's list of returns.

    Filter, evaluation and progress are None where there is none.
    """

    config: EgoAHTConfig
    context: RunContext
    files: RunFiles
    env: Any
    partner: PartnerLike
    factory: TrainerFactory
    driver: AnyDriver | None
    evaluator: Evaluator | None
    progress: ProgressCallback | None
    upstream_list: bool

    def write_card(self, status: RunStatus) -> None:
        """Write the run's card."""
        self.files.write_card(
            status=status,
            fingerprint=self.context.config_fingerprint or "",
            config=self.config.model_dump(mode="json"),
        )

    def outcome(
        self,
        status: Literal["completed", "already_finished"],
        frames: int,
        resumed_from: int | None = None,
    ) -> RunOutcome:
        """Return what a call of `cadenza.aht.train.train` did."""
        return RunOutcome(
            status=status,
            frames=frames,
            resumed_from=resumed_from,
            log_path=self.files.log,
            curve_path=self.files.curve,
        )


def extra_facts(cfg: EgoAHTConfig, partner: PartnerLike, fingerprint: str) -> dict[str, str]:
    """Return the facts that go on every line of the log."""
    facts = {
        "task": cfg.env.task,
        "partner_class": cfg.partner.class_name,
        "config_hash": fingerprint,
    }
    partner_id = partner_id_of(partner)
    return facts if partner_id is None else {**facts, "partner_id": partner_id}


def partner_id_of(partner: PartnerLike) -> str | None:
    """Return the identity in the partner's spec; partners made by hand may have none."""
    identity = getattr(partner.spec, "partner_id", None)
    return None if identity is None else str(identity)
