"""One run of `cadenza.aht.train`: its parts, the opening of its log, its end."""

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

from cadenza.aht.checkpointing import StoredState
from cadenza.aht.config import EgoAHTConfig
from cadenza.aht.run_files import RunFiles, RunStatus
from cadenza.aht.safety_station import AnyDriver, SafetyStation, build_safety_station
from cadenza.aht.types import (
    Evaluator,
    ProgressCallback,
    RewardCurve,
    RunOutcome,
    TrainerFactory,
)
from cadenza.core.errors import StorageError
from cadenza.core.files import atomic_write_json, finite_or_none
from cadenza.core.log_sinks import LogSink, TensorboardSink, make_wandb_run_sink
from cadenza.core.provenance import RunContext
from cadenza.core.runlog import RunLogger, bind_run_logger
from cadenza.core.types import PartnerLike

_logger = logging.getLogger(__name__)

#: Version of the stored reward curve.
CURVE_FORMAT: Final = "cadenza.reward_curve/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one call of `train` works with.

    Attributes:
        config: Checked configuration.
        context: Origin of the run.
        files: Where its files are.
        env: Environment that is stepped.
        partner: Frozen partner.
        factory: Builds the learner.
        driver: Safety filter, or None.
        evaluator: Periodic evaluation, or None.
        progress: Told about progress, or None.
        upstream_list: Reproduce upstream's list of episode returns.
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


def open_log(run: Run, stored: StoredState | None) -> RunLogger:
    """Open the run log, anew or behind the stored offset, with the configured copies."""
    cfg, resumed = run.config, stored is not None
    sinks: list[LogSink] = []
    if cfg.tensorboard.enabled:
        folder = cfg.log_dir / "tensorboard" / run.files.run_id
        # What was written at the stored step itself came before the state and stays.
        first_new_step = None if stored is None else stored.step + 1
        sinks.append(TensorboardSink(folder, resume_step=first_new_step))
    return bind_run_logger(
        run.context,
        jsonl_path=run.files.log,
        wandb_sink=make_wandb_run_sink(
            cfg.wandb,
            run.context,
            config_extras={"config": cfg.model_dump(mode="json")},
            resume=resumed,
        ),
        sinks=sinks,
        resume_offset=None if stored is None else _end_of_checkpoint(run.files.log, stored.step),
    )


def _end_of_checkpoint(log: Path, step: int) -> int:
    """Return the length of the run log up to the event of the checkpoint of ``step``, in bytes.

    Raises:
        StorageError: The log cannot be read, or has no such event.
    """
    length = 0
    try:
        with log.open("rb") as lines:
            for line in lines:
                length += len(line)
                if b'"checkpoint_saved"' in line and json.loads(line)["step"] == step:
                    return length
    except (OSError, ValueError) as error:
        raise StorageError(f"{log}: expected the run's log, got: {error}; restore it.") from error
    raise StorageError(
        f"{log}: expected the event of the checkpoint of step {step}, got none; restore the log."
    )


def announce(run: Run, stored: StoredState | None, log: RunLogger) -> None:
    """Write the event that begins or continues the run."""
    if stored is None:
        log.info(
            "training_start",
            total_frames=run.config.total_frames,
            checkpoint_every=run.config.checkpoint_every,
        )
        return
    for reason in stored.skipped:
        log.warning("training_state_skipped", reason=reason)
        _logger.warning("Skipping a damaged training state: %s", reason)
    log.info("training_resumed", step=stored.step, n_skipped=len(stored.skipped))


def build_station(run: Run) -> SafetyStation | None:
    """Return the safety filter's place in the loop, or None without a filter."""
    if run.driver is None:
        return None
    return build_safety_station(run.driver, run.config, partner_id_of(run.partner))


def finish_run(run: Run, log: RunLogger, curve: RewardCurve, station: SafetyStation | None) -> None:
    """Write the closing events, the reward curve, and last the mark that the run is finished."""
    if station is not None:
        record = station.final_record()
        log.info(record.pop("event"), **record)
    atomic_write_json(run.files.curve, _curve_content(run, curve))
    log.info(
        "training_end",
        n_episodes=len(curve.per_episode_ego_rewards),
        n_checkpoints=len(curve.checkpoint_paths),
    )
    write_card(run, "finished")


def _curve_content(run: Run, curve: RewardCurve) -> Mapping[str, Any]:
    return {
        "format": CURVE_FORMAT,
        "run_id": curve.run_id,
        "task": run.config.env.task,
        "partner_class": run.config.partner.class_name,
        "per_episode_ego_rewards": curve.per_episode_ego_rewards,
        "episodes": [asdict(record) for record in curve.episodes],
        "evaluations": [
            {
                "frame": record.frame,
                "results": {name: finite_or_none(value) for name, value in record.results.items()},
            }
            for record in curve.evaluations
        ],
        "checkpoints": [path.name for path in curve.checkpoint_paths],
    }


def write_card(run: Run, status: RunStatus) -> None:
    """Write the run's card."""
    run.files.write_card(
        status=status,
        fingerprint=run.context.config_fingerprint or "",
        config=run.config.model_dump(mode="json"),
    )


def outcome_of(
    run: Run,
    status: Literal["completed", "already_finished"],
    frames: int,
    resumed_from: int | None,
) -> RunOutcome:
    """Return what a call of `cadenza.aht.train.train` did."""
    return RunOutcome(
        status=status,
        frames=frames,
        resumed_from=resumed_from,
        log_path=run.files.log,
        curve_path=run.files.curve,
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
