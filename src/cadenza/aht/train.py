"""Train an ego robot beside a frozen partner: the one entry point.

Promise:  the same configuration, code and packages give the same bytes on the CPU: reward curve,
          checkpoints, run id. A run that was killed and resumed gives the same as an unbroken one.
Resume:   see `cadenza.aht.checkpointing` (what is stored) and `cadenza.aht.replay` (how environment
          and partner return to the middle of an episode).
"""

import importlib
import json
import logging
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, Literal, cast

from cadenza.aht.algorithms import entry_of
from cadenza.aht.checkpointing import Checkpointer, StoredState, load_newest_state
from cadenza.aht.config import EgoAHTConfig, config_fingerprint
from cadenza.aht.loop import (
    LoopParts,
    episode_seed,
    reset_partner_rows,
    run_scalar_loop,
    run_vector_loop,
    total_iterations,
)
from cadenza.aht.loop_state import LoopState
from cadenza.aht.replay import require_same_observation
from cadenza.aht.run import Run, RunFiles, extra_facts, unfinished_runs
from cadenza.aht.safety_station import (
    AnyDriver,
    SafetyStation,
    driver_of_parts,
    require_matching_safety,
)
from cadenza.aht.types import (
    EgoTrainer,
    Evaluator,
    ForgettingTrainer,
    ProgressCallback,
    ResumableTrainer,
    RewardCurve,
    TrainerFactory,
    TrainingResult,
)
from cadenza.core.errors import CheckpointError, ConfigurationError, StorageError
from cadenza.core.files import atomic_write_json, finite_or_none
from cadenza.core.log_sinks import LogSink, TensorboardSink, make_wandb_run_sink
from cadenza.core.provenance import compute_run_metadata
from cadenza.core.runlog import RunLogger, bind_run_logger
from cadenza.core.signals import ends_on_signals
from cadenza.core.types import Observation, PartnerLike
from cadenza.safety.bounds import Bounds
from cadenza.safety.protocols import EgoOnlySafetyFilter, EmergencyController
from cadenza.safety.snapshot import AgentSnapshot
from cadenza.safety.state import SafetyState

_logger = logging.getLogger(__name__)

#: Version of the stored reward curve.
CURVE_FORMAT: Final = "cadenza.reward_curve/1"


def load_algorithm(name: str) -> TrainerFactory:
    """Import and return the trainer factory registered under ``name``.

    Raises:
        UnknownNameError: No such algorithm; the message lists the known ones.
    """
    module, _, attributes = entry_of(name).partition(":")
    found: object = importlib.import_module(module)
    for attribute in attributes.split("."):
        found = getattr(found, attribute)
    return cast("TrainerFactory", found)


@ends_on_signals
def train(
    cfg: EgoAHTConfig,
    *,
    env: Any,
    partner: PartnerLike,
    trainer_factory: TrainerFactory | None = None,
    repo_root: Path | None = None,
    safety: AnyDriver | None = None,
    evaluator: Evaluator | None = None,
    progress: ProgressCallback | None = None,
    resume: bool = False,
    overwrite: bool = False,
    task_version: int | None = None,
    compat: Literal["upstream"] | None = None,
    safety_filter: EgoOnlySafetyFilter | None = None,
    safety_state: SafetyState | None = None,
    safety_bounds: Bounds | None = None,
    safety_snapshot_builder: Callable[[Any], dict[str, AgentSnapshot]] | None = None,
    safety_dt: float | None = None,
    safety_emergency_controllers: Mapping[str, EmergencyController] | None = None,
) -> TrainingResult:
    """Train the ego.

    A run is identified by configuration, seed, code and packages. One that already has results is
    never replaced silently: pass ``resume`` to continue it or ``overwrite`` to delete it. A run
    that was killed before its first checkpoint has none, so both start it anew.

    Args:
        cfg: Checked configuration.
        env: Environment to step, scalar, or batched if ``cfg.env.num_envs > 1``.
        partner: Frozen partner.
        trainer_factory: Builds the learner; by default the algorithm ``cfg.algo``.
        repo_root: Working tree for the run's provenance; by default this package's own checkout.
        safety: Filter built from ``env`` itself; needed exactly if ``cfg.safety.enabled``.
        evaluator: Measures the policy at the end, and every ``cfg.evaluation.every_frames`` frames.
        progress: Called at episode ends and rollout boundaries.
        resume: Go on from the newest intact training state; a finished run is returned as it is.
        overwrite: Delete the results of an earlier run of this identity first.
        task_version: The one of the task that policy files name.
        compat: ``"upstream"`` also lists the episodes that the end of training cut off.
        safety_filter: Filter of parts, all but the last one together, instead of ``safety``.
        safety_state: Its slack, moved in place.
        safety_bounds: Envelope of the task.
        safety_snapshot_builder: From the environment to every agent's motion, once per step.
        safety_dt: Control step, s.
        safety_emergency_controllers: See `cadenza.safety.braking.maybe_brake`.

    Raises:
        ConfigurationError: The parts do not fit the configuration, the run has results already, or
            was made by other code and cannot be resumed.
        NotReadyError: Another process is training this very run.
        CheckpointError: ``resume`` found only damaged training states.
        StorageError: The file system refused; what was saved before is intact.
    """
    parts = {
        "safety_filter": safety_filter,
        "safety_state": safety_state,
        "safety_bounds": safety_bounds,
        "safety_snapshot_builder": safety_snapshot_builder,
        "safety_dt": safety_dt,
        "safety_emergency_controllers": safety_emergency_controllers,
    }
    safety = driver_of_parts(cfg, env, parts, safety)
    _check_arguments(cfg, env, safety, evaluator, resume=resume, overwrite=overwrite)
    fingerprint = config_fingerprint(cfg)
    factory = trainer_factory or load_algorithm(cfg.algo)
    context = compute_run_metadata(
        seed=cfg.seed,
        run_kind=cfg.algo,
        repo_root=repo_root,
        extra=extra_facts(cfg, partner, fingerprint),
        config_fingerprint=fingerprint,
        code=(
            factory,
            *map(type, (partner, env, getattr(env, "unwrapped", env))),
            *map(type, getattr(partner, "members", ())),
        ),
    )
    run = Run(
        config=cfg,
        context=context,
        files=RunFiles(
            run_id=context.run_id, artifacts_root=cfg.artifacts_root, log_dir=cfg.log_dir
        ),
        env=env,
        partner=partner,
        factory=factory,
        driver=safety,
        evaluator=evaluator,
        progress=progress,
        upstream_list=compat == "upstream",
        task_version=task_version,
    )
    with run.files.locked():
        if overwrite:
            run.files.delete_results()
        stored = find_stored_state(run) if resume else None
        if stored is not None and is_finished(run, stored):
            return _finished_result(run, stored)
        if stored is None:
            refuse_to_replace(run, resume=resume)
        return _train(run, stored)


def _check_arguments(
    cfg: EgoAHTConfig,
    env: Any,
    safety: AnyDriver | None,
    evaluator: Evaluator | None,
    *,
    resume: bool,
    overwrite: bool,
) -> None:
    """Raise unless the parts fit the configuration; nothing has been written yet."""
    require_matching_safety(cfg, env, safety)
    if resume and overwrite:
        raise ConfigurationError(
            "train: expected resume or overwrite, got both; resume continues a run, overwrite "
            "deletes it."
        )
    if cfg.evaluation.every_frames > 0 and evaluator is None:
        raise ConfigurationError(
            f"train: evaluation.every_frames is {cfg.evaluation.every_frames} but no evaluator "
            "was passed; pass one, or set evaluation.every_frames=0."
        )
    if cfg.total_frames < cfg.env.num_envs:
        raise ConfigurationError(
            f"train: expected total_frames >= env.num_envs = {cfg.env.num_envs}, got "
            f"{cfg.total_frames}: not one step would be made."
        )


def _train(run: Run, stored: StoredState | None) -> TrainingResult:
    """Begin or continue the run, and finish it."""
    cfg = run.config
    state = LoopState(run.files.run_id, cfg.env.num_envs, cfg.seed)
    with _open_log(run, stored) as log:
        _announce(run, stored, log)
        run.write_card("running")
        ego_uid = cfg.env.agent_uids[0]
        trainer = run.factory(cfg, env=run.env, partner=run.partner, ego_uid=ego_uid, logger=log)
        station = None
        if run.driver is not None:
            station = SafetyStation(run.driver, cfg, run.partner)
        if stored is None:
            obs = _begin(run, station)
        else:
            obs = restore(run, stored, state, trainer, station)
        digests: Mapping[int, str] = {} if stored is None else stored.policy_digests
        checkpointer = Checkpointer(run, log, state, trainer, station, digests)
        parts = LoopParts(
            run=run, trainer=trainer, log=log, station=station, checkpointer=checkpointer
        )
        loop = run_scalar_loop if cfg.env.num_envs == 1 else run_vector_loop
        loop(parts, state, obs)
        state.finish_run(upstream_list=run.upstream_list)
        _finish(run, log, state.curve, station)
    outcome = run.outcome("completed", state.frames, None if stored is None else stored.step)
    return TrainingResult(state.curve, trainer, outcome=outcome)


def _open_log(run: Run, stored: StoredState | None) -> RunLogger:
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


def _announce(run: Run, stored: StoredState | None, log: RunLogger) -> None:
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


def _finish(run: Run, log: RunLogger, curve: RewardCurve, station: SafetyStation | None) -> None:
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
    run.write_card("finished")


def _curve_content(run: Run, curve: RewardCurve) -> Mapping[str, Any]:
    return {
        "format": CURVE_FORMAT,
        "run_id": curve.run_id,
        "task": run.config.env.task,
        "partner_class": "+".join(partner.class_name for partner in run.config.trained_with),
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


def _begin(run: Run, station: SafetyStation | None) -> Observation:
    """Reset everything for the first episode."""
    seed = run.config.seed
    obs: Observation = run.env.reset(seed=seed)[0]
    run.partner.reset(seed=seed)
    if station is not None:
        station.begin_run(seed)
        station.begin_episode()
    return obs


def _finished_result(run: Run, stored: StoredState) -> TrainingResult:
    """Return the result of a finished run; nothing is computed or written."""
    cfg = run.config
    trainer = run.factory(
        cfg, env=run.env, partner=run.partner, ego_uid=cfg.env.agent_uids[0], logger=None
    )
    state = LoopState(run.files.run_id, cfg.env.num_envs, cfg.seed)
    state.load_state_dict(stored.content["loop"], paths=stored.policy_paths)
    if isinstance(trainer, ResumableTrainer):
        trainer.load_training_state(stored.content["trainer"])
    state.finish_run(upstream_list=run.upstream_list)
    _logger.info("Run %s is finished already (%d frames).", run.files.run_id, state.frames)
    return TrainingResult(
        state.curve, trainer, outcome=run.outcome("already_finished", state.frames)
    )


def find_stored_state(run: Run) -> StoredState | None:
    """Return the state to resume from, or None if the run left none.

    Raises:
        ConfigurationError: Only runs of this configuration by other code could be resumed.
    """
    stored = load_newest_state(run.files)
    if stored is None and run.files.read_card() is None:
        others = unfinished_runs(
            run.files.folder,
            fingerprint=run.context.config_fingerprint or "",
            other_than=run.files.run_id,
        )
        if others:
            raise ConfigurationError(
                f"train: expected an unfinished run {run.files.run_id} to resume, got only "
                f"{', '.join(others)} of the same configuration, made by other code or packages; "
                "check that version out to resume it, or start again without resume."
            )
    return stored


def is_finished(run: Run, stored: StoredState) -> bool:
    """Return whether the run ended and ``stored`` is its last state, nothing being damaged."""
    final_frames = total_iterations(run.config) * run.config.env.num_envs
    return _has_ended(run) and run.files.curve.is_file() and stored.step == final_frames


def refuse_to_replace(run: Run, *, resume: bool) -> None:
    """Raise if the run has results that starting anew would replace.

    Raises:
        ConfigurationError: It has.
    """
    policies = run.files.policies()
    # A kill within the first save leaves one policy without a state: the same is written again.
    if not policies or (resume and len(policies) == 1 and not _has_ended(run)):
        return
    advice = (
        "there is no training state to resume from; pass overwrite (--overwrite) to delete the run "
        "and start again."
        if resume
        else "pass resume (--resume) to continue the run, or overwrite (--overwrite) to delete "
        "it and start again."
    )
    raise ConfigurationError(
        f"train: run {run.files.run_id} already has {len(policies)} checkpoint(s) in "
        f"{run.files.folder}; {advice}"
    )


def _has_ended(run: Run) -> bool:
    card = run.files.read_card()
    return card is not None and card["status"] == "finished"


def restore(
    run: Run,
    stored: StoredState,
    state: LoopState,
    trainer: EgoTrainer,
    station: SafetyStation | None,
) -> Observation:
    """Bring every part back to the stored state; return the current observation.

    Raises:
        ConfigurationError: The learner cannot load a training state.
        CheckpointError: The replayed episode differs from the stored one, and the learner is no
            `ForgettingTrainer`.
    """
    cfg, content = run.config, stored.content
    if not isinstance(trainer, ResumableTrainer):
        raise ConfigurationError(
            f"train: expected a learner with load_training_state to resume, got "
            f"{type(trainer).__name__}; start the run again with overwrite."
        )
    trainer.load_training_state(content["trainer"])
    state.load_state_dict(content["loop"], paths=stored.policy_paths)
    obs: Observation = {}  # of a run that awaits a reset: the next step begins with it
    lost: CheckpointError | None = None
    if not state.awaiting_reset:
        try:
            obs = _replay(run, state)
            require_same_observation(obs, content["observation"])
        except CheckpointError as error:
            if not isinstance(trainer, ForgettingTrainer):
                raise
            lost = error
    if station is not None:
        station.begin_run(cfg.seed)
        station.load_state_dict(content["safety"])
    if lost is not None:
        obs = _begin_anew(run, state, cast("ForgettingTrainer", trainer), station, lost)
    return obs


def _begin_anew(
    run: Run,
    state: LoopState,
    trainer: ForgettingTrainer,
    station: SafetyStation | None,
    lost: CheckpointError,
) -> Observation:
    """Begin new episodes where the running ones cannot be brought back; say so."""
    warnings.warn(
        f"train: the run continues, but not bit for bit: new episodes begin, because {lost}",
        UserWarning,
        stacklevel=2,
    )
    trainer.forget_episodes()
    state.forget_episodes()
    state.episode_index += 1
    seed = episode_seed(run.config.seed, state.episode_index)
    obs: Observation = run.env.reset(seed=seed)[0]
    run.partner.reset(seed=seed)
    if station is not None:
        station.begin_episode()
    state.replay.restart(seed, state.episode_index)
    return obs


def _replay(run: Run, state: LoopState) -> Observation:
    """Play the record of the running episode, or of the whole run when batched."""
    if run.config.env.num_envs == 1:
        return state.replay.play(run.env, run.partner, run.config.env.agent_uids)
    episodes = state.replay.first_episode

    def reset_rows(ended: list[int]) -> None:
        nonlocal episodes
        episodes = reset_partner_rows(run.partner, ended, run.config.seed, episodes)

    return state.replay.play(
        run.env, run.partner, run.config.env.agent_uids, on_rows_ended=reset_rows
    )
