"""Train an ego robot beside a frozen partner: the one entry point.

Promise:   the same configuration, code and packages give the same bytes on the CPU: reward curve,
           checkpoints, run id. A run that was killed and resumed gives the same as an unbroken one.
Loop:      `Training` is what the one loop of `cadenza.learn.agents.loop` steps and updates; what
           that leaves is written by `Keeper`. One step: see `cadenza.aht.seat`; the learner is
           told, then it is counted.
Boundary:  after every ``rollout_length`` steps the learner updates; then, when due, a periodic
           evaluation and a checkpoint.
Save:      policy file, policy checkpoint, ``checkpoint_saved`` event, training state. A resume cuts
           the log behind that event, so a kill at any point repeats nothing and loses nothing but
           the steps since the last state. A state holds nothing that a resume changes.
"""

import importlib
import json
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, cast

from cadenza.aht.algorithms import entry_of
from cadenza.aht.config import EgoAHTConfig, config_fingerprint
from cadenza.aht.run import STATE_FORMAT, Run, StoredState, extra_facts
from cadenza.aht.safety_telemetry import (
    AnyDriver,
    SafetyStation,
    driver_of_parts,
    require_matching_safety,
)
from cadenza.aht.seat import History, Seat, SeatStep
from cadenza.aht.types import (
    EvaluationRecord,
    EvaluationWatch,
    Evaluator,
    ForgettingTrainer,
    Policy,
    PortableTrainer,
    ProgressCallback,
    ResumableTrainer,
    RewardCurve,
    SteppingTrainer,
    TrainerFactory,
    TrainingResult,
)
from cadenza.core.checkpoints import (
    CheckpointMetadata,
    read_metadata,
    resolve_uri,
    save_checkpoint,
)
from cadenza.core.contracts import contract_at
from cadenza.core.errors import CheckpointError, ConfigurationError, StorageError
from cadenza.core.files import atomic_write_json, finite_or_none
from cadenza.core.log_sinks import LogSink, TensorboardSink, make_wandb_run_sink
from cadenza.core.provenance import compute_run_metadata
from cadenza.core.runlog import RunLogger, bind_run_logger, log_eval, log_scalars
from cadenza.core.signals import ends_on_signals
from cadenza.core.types import PartnerLike, companions_of
from cadenza.learn.agents.loop import AgentCallback, Loop
from cadenza.learn.nn.portable import (
    POLICY_FACT,
    TRAINED_BEHIND,
    TRAINED_WITH,
    policy_path,
    save_policy_file,
)
from cadenza.safety.contracts import Bounds, EgoOnlySafetyFilter, EmergencyController, SafetyState
from cadenza.safety.snapshot import AgentSnapshot

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
    validator: Evaluator | None = None,
    progress: ProgressCallback | None = None,
    resume: bool = False,
    overwrite: bool = False,
    task_version: int | None = None,
    watch: EvaluationWatch | None = None,
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
        validator: Measures every checkpoint beside ``cfg.evaluation.validation``; needed exactly if
            there are any.
        progress: Called at episode ends and rollout boundaries.
        resume: Go on from the newest intact training state; a finished run is returned as it is.
        overwrite: Delete the results of an earlier run of this identity first.
        task_version: The one of the task that policy files name.
        watch: Told of every evaluation; what it raises ends the run.
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
        DeviceUnavailableError: The configured device is not on this machine.
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
    require_matching_safety(cfg, env, safety)
    _check_arguments(cfg, evaluator, validator, both=resume and overwrite)
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
        env=env,
        partner=partner,
        factory=factory,
        driver=safety,
        evaluator=evaluator,
        progress=progress,
        upstream_list=compat == "upstream",
        task_version=task_version,
        watch=watch,
        validator=validator,
    )
    with run.files.locked():
        if overwrite:
            run.files.delete_results()
        stored = run.stored_state() if resume else None
        if stored is not None and run.is_finished_at(stored.step):
            return _finished_result(run, stored)
        if stored is None:
            run.refuse_to_replace(resume=resume)
        return _train(run, stored)


def _check_arguments(
    cfg: EgoAHTConfig, evaluator: Evaluator | None, validator: Evaluator | None, *, both: bool
) -> None:
    """Raise unless the parts fit the configuration; nothing has been written yet."""
    if both:
        raise ConfigurationError(
            "train: expected resume or overwrite, got both; resume continues a run, overwrite "
            "deletes it."
        )
    if cfg.evaluation.every_frames > 0 and evaluator is None:
        raise ConfigurationError(
            f"train: evaluation.every_frames is {cfg.evaluation.every_frames} but no evaluator "
            "was passed; pass one, or set evaluation.every_frames=0."
        )
    if bool(cfg.evaluation.validation) != (validator is not None):
        raise ConfigurationError(
            "train: expected a validator exactly if evaluation.validation names partners, got "
            f"{len(cfg.evaluation.validation)} of them and "
            f"{'no validator' if validator is None else 'a validator'}."
        )
    if cfg.total_iterations == 0:
        raise ConfigurationError(
            f"train: expected total_frames >= env.num_envs = {cfg.env.num_envs}, got "
            f"{cfg.total_frames}: not one step would be made."
        )
    cfg.device()  # refuses one that this machine lacks


def _train(run: Run, stored: StoredState | None) -> TrainingResult:
    """Begin or continue the run, and finish it."""
    with _open_log(run, stored) as log:
        _announce(run, stored, log)
        run.write_card("running")
        training = Training(run, log)
        if stored is None:
            training.seat.begin()
        else:
            training.restore(stored)
        left = run.config.total_iterations * run.config.env.num_envs - training.steps
        Loop(training, [Keeper(run, log)], None, _silent).run(left)
        training.history.finish(upstream_list=run.upstream_list)
        _finish(run, log, training)
    outcome = run.outcome("completed", training.steps, None if stored is None else stored.step)
    return TrainingResult(training.history.curve, training.trainer, outcome=outcome)


def _silent(_done: int, _total: int, _detail: str) -> None:
    """Show nothing: `Keeper` reports."""


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


def _finish(run: Run, log: RunLogger, training: "Training") -> None:
    """Write the closing events, the reward curve, and last the mark that the run is finished."""
    curve = training.history.curve
    if training.station is not None:
        record = training.station.final_record()
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
        "partner_class": run.config.partner_class,
        "per_episode_ego_rewards": curve.per_episode_ego_rewards,
        "episodes": [asdict(record) for record in curve.episodes],
        "evaluations": _told(curve.evaluations),
        **({"validations": _told(curve.validations)} if curve.validations else {}),
        "checkpoints": [path.name for path in curve.checkpoint_paths],
    }


def _told(records: Sequence[EvaluationRecord]) -> list[dict[str, Any]]:
    return [
        {
            "frame": record.frame,
            "results": {name: finite_or_none(value) for name, value in record.results.items()},
        }
        for record in records
    ]


def _finished_result(run: Run, stored: StoredState) -> TrainingResult:
    """Return the result of a finished run; nothing is computed or written."""
    training = Training(run, None)
    training.load_results(stored)
    training.history.finish(upstream_list=run.upstream_list)
    _logger.info("Run %s is finished already (%d frames).", run.files.run_id, training.steps)
    outcome = run.outcome("already_finished", training.steps)
    return TrainingResult(training.history.curve, training.trainer, outcome=outcome)


class Training:
    """What the loop steps and updates: the learner, its seat, and what has happened so far.

    Of a finished run ``log`` is None: nothing is stepped then.
    """

    progress: str = ""  # the loop's bar is not shown

    def __init__(self, run: Run, log: RunLogger | None) -> None:
        config, ego_uid = run.config, run.config.env.agent_uids[0]
        self._run = run
        self.trainer = run.factory(
            config, env=run.env, partner=run.partner, ego_uid=ego_uid, logger=log
        )
        self.station: SafetyStation | None = None
        if run.driver is not None:
            self.station = SafetyStation(run.driver, config, run.partner)
        self.seat: Seat = Seat(config, run.env, run.partner, self.station)
        self._own: SteppingTrainer | None = None
        if isinstance(self.trainer, SteppingTrainer):
            self._own = self.trainer
            self._own.sit(self.seat)
        self.history: History = History(run.files.run_id, config.env.num_envs)
        self.policy_digests: dict[int, str] = {}  # SHA-256 of policy checkpoints by step
        self.target_steps: int = 0
        self.updates: int = 0
        self.due: int = 0

    @property
    def steps(self) -> int:
        """Frames so far."""
        return self.history.frames

    @property
    def is_last(self) -> bool:
        """Whether the last step was taken."""
        return self.steps >= self.target_steps

    def begin(self, steps: int) -> None:
        """Set the goal ``steps`` frames from here."""
        self.target_steps = self.steps + steps
        if self._own is not None:
            self._own.begin(steps)

    def step(self) -> SeatStep:
        """Take one control step; the learner records it."""
        config = self._run.config
        step = self._observed() if self._own is None else self._own.step()
        self.history.record(step)
        due = self.history.iterations % config.rollout_length == 0
        if self._own is not None:
            due = self._own.due
        self.due = int(due or (self.is_last and config.ppo_extras.flush_partial_rollout))
        return step

    def _observed(self) -> SeatStep:
        """Take a step with the learner's action, and tell it what followed."""
        nominal = self.trainer.act(self.seat.observe())
        step = self.seat.step(nominal)
        batch = {} if self._run.config.env.num_envs == 1 else {"final_obs": step.final_obs}
        self.trainer.observe(
            step.obs, step.reward - step.penalty, step.done, truncated=step.truncated, **batch
        )
        return step

    def policy(self) -> Policy:
        """Return what plays greedily, from the beginning of an episode."""
        if self._own is not None:
            return self._own.policy()
        return partial(self.trainer.act, deterministic=True)

    def is_halfway(self) -> bool:
        """Return whether more steps must follow the last: an open rollout is left as it is."""
        return False

    def forget(self) -> None:
        """Leave everything as it is: a run goes on from its last training state."""

    def batch(self) -> None:
        """Return nothing: the learner holds what it observed."""

    def update(self, batch: None) -> Mapping[str, float]:
        """Let the learner update; it reports its figures itself."""
        del batch
        self.due = 0
        self.updates += 1
        self.trainer.update()
        return {}

    def state(self, trainer: ResumableTrainer) -> dict[str, Any]:
        """Return the training state."""
        return {
            "format": STATE_FORMAT,
            "run_id": self._run.files.run_id,
            "loop": {**self.history.state_dict(), **self.seat.state_dict()},
            "trainer": trainer.training_state(),
            "safety": None if self.station is None else self.station.state_dict(),
            "observation": self.seat.digest(),
            "policies": dict(self.policy_digests),
        }

    def load_results(self, stored: StoredState) -> None:
        """Take over what was learned, and the reward curve."""
        if isinstance(self.trainer, ResumableTrainer):
            self.trainer.load_training_state(stored.content["trainer"])
        self.history.load_state_dict(stored.content["loop"], paths=stored.policy_paths)

    def restore(self, stored: StoredState) -> None:
        """Bring every part back to the stored state.

        Raises:
            ConfigurationError: The learner cannot load a training state.
            CheckpointError: The replayed episode differs from the stored one, and the learner is no
                `ForgettingTrainer`.
        """
        trainer, content = self.trainer, stored.content
        if not isinstance(trainer, ResumableTrainer):
            raise ConfigurationError(
                f"train: expected a learner with load_training_state to resume, got "
                f"{type(trainer).__name__}; start the run again with overwrite."
            )
        self.load_results(stored)
        self.policy_digests = dict(stored.policy_digests)
        self.seat.load_state_dict(content["loop"])
        lost: CheckpointError | None = None
        if content["observation"] is not None:  # otherwise the next step begins an episode
            try:
                self.seat.replay(content["observation"])
            except CheckpointError as error:
                if not isinstance(trainer, ForgettingTrainer):
                    raise
                lost = error
        if self.station is not None:
            self.station.driver.begin_run(self._run.config.seed)
            self.station.load_state_dict(content["safety"])
        if lost is not None:
            warnings.warn(
                "train: the run continues, but not bit for bit: new episodes begin, because "
                f"{lost}",
                UserWarning,
                stacklevel=2,
            )
            cast("ForgettingTrainer", trainer).forget_episodes()
            self.history.forget_episodes()
            self.seat.begin_next()


class Keeper(AgentCallback):
    """Writes what a run leaves: events, evaluations and checkpoints; reports its progress."""

    def __init__(self, run: Run, log: RunLogger) -> None:
        self._run, self._log = run, log

    def on_step(self, agent: Training, step: SeatStep) -> None:
        """Do what the step made due, unless an update comes first."""
        if not agent.due:
            self._after(agent, reports=bool(step.ended) or agent.is_last)

    def on_update(self, agent: Training, batch: None, figures: Mapping[str, Any]) -> None:
        """Write the events of a rollout boundary, start the next window, do what is due."""
        del batch, figures
        step, history = agent.steps, agent.history
        if agent.station is not None:
            self._log.info(
                "safety_telemetry", step=step, **agent.station.aggregator.flush_window_stats()
            )
        self._log.info("rollout_update", step=step, last_reward=history.window.last_reward)
        log_scalars(self._log, step=step, namespace="rollout", **history.window.figures())
        history.begin_window()
        self._after(agent, reports=True)

    def _after(self, training: Training, *, reports: bool) -> None:
        config, evaluator, progress = self._run.config, self._run.evaluator, self._run.progress
        is_last = training.is_last
        if evaluator and (is_last or self._is_due(config.evaluation.every_frames, training)):
            self._evaluate(training, evaluator)
        if is_last or self._is_due(config.checkpoint_every, training):
            self._save(training)
        if progress and reports:
            progress(training.steps, config.total_frames, training.history.last_return)

    def _is_due(self, every: int, training: Training) -> bool:
        """Return whether the last step reached a multiple of ``every`` frames; 0 never."""
        before = training.steps - self._run.config.env.num_envs
        return every > 0 and training.steps // every > before // every

    def _evaluate(self, training: Training, evaluator: Evaluator) -> None:
        """Measure the deterministic policy and record the figures."""
        record = self._measured(training, evaluator, "periodic")
        training.history.curve.evaluations.append(record)
        if self._run.watch:
            self._run.watch(training.history.curve.evaluations)

    def _measured(
        self, training: Training, evaluator: Evaluator, condition: str
    ) -> EvaluationRecord:
        """Return what the deterministic policy reaches now, and log it."""
        settings, step = self._run.config.evaluation, training.steps
        measured = evaluator(
            training.policy(), episodes=settings.episodes, root_seed=settings.root_seed
        )
        results = {name: float(value) for name, value in measured.items()}
        log_eval(self._log, step=step, condition=condition, **results)
        return EvaluationRecord(frame=step, results=results)

    def _save(self, training: Training) -> None:
        """Write policy, policy file and training state.

        Raises:
            StorageError: The file system refused; earlier checkpoints are intact.
            CheckpointError: The learner's state holds what could not be read back.
        """
        files, trainer, step = self._run.files, training.trainer, training.steps
        root, uri = files.artifacts_root, files.policy_uri(step)
        metadata = policy_metadata = self._metadata(step)
        curve, is_best = training.history.curve, False
        if self._run.validator is not None:
            curve.validations.append(self._measured(training, self._run.validator, "validation"))
            is_best = curve.best is curve.validations[-1]
        if isinstance(trainer, PortableTrainer):
            network = trainer.network(**self._policy_facts(step))
            if is_best:
                save_policy_file(network, files.best)
            save_policy_file(network, policy_path(resolve_uri(uri, artifacts_root=root)))
            facts = {**metadata.extra, POLICY_FACT: network.content_id}
            policy_metadata = replace(metadata, extra=facts)
        path = save_checkpoint(
            state_dict=trainer.state_dict(),
            uri=uri,
            metadata=policy_metadata,
            artifacts_root=root,
        )
        training.policy_digests[step] = read_metadata(uri=uri, artifacts_root=root).sha256
        curve.checkpoint_paths.append(path)
        self._log.info("checkpoint_saved", step=step, path=str(path))
        self._log.offset()  # makes the event durable before the state that counts on it
        if isinstance(trainer, ResumableTrainer):
            save_checkpoint(
                state_dict=training.state(trainer),
                uri=files.state_uri(step),
                metadata=metadata,
                artifacts_root=root,
            )
            files.prune_states(self._run.config.resume.keep)

    def _policy_facts(self, step: int) -> dict[str, Any]:
        """Return what a policy file says of the task, the seat and the run."""
        config, context, partner = self._run.config, self._run.context, self._run.partner
        env, own = config.env, () if config.brings_partner else (partner,)
        met = sorted(companions_of(getattr(partner, "members", own)))
        facts: dict[str, Any] = {"algorithm": config.algo, "run_id": context.run_id}
        if config.safety.enabled:
            facts[TRAINED_BEHIND] = config.safety.model_dump(mode="json")
        return {
            "task": {"id": env.task, "version": self._run.task_version, "options": env.options},
            "seat": env.agent_uids[0],
            "contract": contract_at(self._run.env, env.agent_uids[0]),
            "facts": {**facts, "seed": context.seed, "step": step, TRAINED_WITH: met},
        }

    def _metadata(self, step: int) -> CheckpointMetadata:
        context = self._run.context
        return CheckpointMetadata(
            run_id=context.run_id,
            seed=context.seed,
            step=step,
            git_sha=context.git_sha,
            pyproject_hash=context.pyproject_hash,
            config_hash=context.config_fingerprint,
            extra={"task": context.extra["task"]},
        )
