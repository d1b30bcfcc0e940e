"""Ego training from a configuration: build the parts, train, close everything.

The safety driver watches the very environment that is stepped. Evaluation during training plays
held-out episodes in an environment of its own and draws nothing from the training streams.

`train_draft_zoo` trains the draft zoo's two checkpoints, so that all of its partners can act. Both
actors learn the push task with the shipped configurations of MAPPO and HAPPO, beside the zoo's
scripted partner: the task the zoo is named after needs a simulator, this one runs on any CPU.
"""

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from cadenza.aht.config import EgoAHTConfig, PartnerConfig, load_config
from cadenza.aht.seat import OpenPartner
from cadenza.aht.train import train
from cadenza.aht.types import (
    EpisodeRecord,
    EvaluationRecord,
    EvaluationWatch,
    Evaluator,
    Policy,
    ProgressCallback,
    RememberingPolicy,
    RewardCurve,
    TrainerFactory,
    TrainingResult,
)
from cadenza.benchmark.builders import (
    build_batched_safety_driver,
    build_env,
    build_partners,
    build_safety_driver,
    require_player,
)
from cadenza.benchmark.episodes import EpisodeTag, open_world, run_episode
from cadenza.benchmark.populations import refuse_held_out
from cadenza.benchmark.tasks import get_task
from cadenza.core.checkpoints import load_checkpoint, save_checkpoint
from cadenza.core.device import flushed_denormals, single_torch_thread
from cadenza.core.errors import ConfigurationError
from cadenza.core.files import sha256_file
from cadenza.core.proportions import clopper_pearson_interval, student_quantile
from cadenza.core.shipped_configs import shipped_config
from cadenza.core.strict_json import parse_json_object
from cadenza.core.types import Observation, PartnerLike
from cadenza.envs.crossing import ACCELERATION_LIMIT_EGO, CONTACT_DISTANCE, CrossingEnv
from cadenza.evaluation.report.view import EvaluationPoint, LearningCurve
from cadenza.evaluation.results import EpisodeResult
from cadenza.partners.interface import PartnerBase
from cadenza.partners.spec import PartnerSpec, make_phase0_draft_zoo
from cadenza.partners.weights import ARTIFACTS_SCHEME
from cadenza.safety.contracts import Bounds, EgoOnlySafetyFilter, SafetyState
from cadenza.safety.emergency import EmergencyController
from cadenza.safety.runtime.driver import SafetyDriver
from cadenza.safety.runtime.options import SafetyOptions
from cadenza.safety.snapshot import AgentSnapshot


def run_training(
    cfg: EgoAHTConfig,
    *,
    trainer_factory: TrainerFactory | None = None,
    repo_root: Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: ProgressCallback | None = None,
    evaluator: Evaluator | None = None,
    watch: EvaluationWatch | None = None,
    safety_filter: EgoOnlySafetyFilter | None = None,
    safety_state: SafetyState | None = None,
    safety_bounds: Bounds | None = None,
    safety_snapshot_builder: Callable[[Any], dict[str, AgentSnapshot]] | None = None,
    safety_dt: float | None = None,
    safety_emergency_controllers: Mapping[str, EmergencyController] | None = None,
) -> TrainingResult:
    """Build environment, partner, safety driver and evaluator, and train the ego.

    Args:
        cfg: Checked configuration.
        trainer_factory: Builds the learner; by default the algorithm ``cfg.algo``.
        repo_root: Source tree for the run's provenance; by default this package's own checkout.
        resume: Go on from the newest intact training state of this run.
        overwrite: Delete the results of an earlier run of this identity first.
        progress: Called with (frames done, frames in total, return of the last episode or None).
        evaluator: Measures the policy; by default `HeldOutEvaluator` of ``cfg``.
        watch: Told of every evaluation; what it raises ends the run.
        safety_filter: With the parts below, see `cadenza.aht.train.train`, instead of the driver
            that the configuration describes.
        safety_state: Conformal slack of every pair.
        safety_bounds: Envelope of the task.
        safety_snapshot_builder: Turns the environment's state into every agent's motion.
        safety_dt: Control step, s.
        safety_emergency_controllers: How each agent brakes.

    Returns:
        Reward curve and trained learner; unpacks as ``curve, trainer``.

    Raises:
        ConfigurationError: The parts do not fit, the run has results already, or a partner of the
            training or of its validation is a held-out member of a zoo.
        CheckpointError: ``resume`` found only damaged training states.
        StorageError: The file system refused.
        IntegrityError: The training has changed the partner's weights.
    """
    parts: dict[str, Any] = {
        "safety_filter": safety_filter,
        "safety_state": safety_state,
        "safety_bounds": safety_bounds,
        "safety_snapshot_builder": safety_snapshot_builder,
        "safety_dt": safety_dt,
        "safety_emergency_controllers": safety_emergency_controllers,
    }
    of_parts = any(part is not None for part in parts.values())
    validated = cfg.evaluation.validation
    refuse_held_out((*cfg.trained_with, *validated))
    env = build_env(cfg.env, root_seed=cfg.seed, partner=cfg.trained_with[0])
    build_driver = build_safety_driver if cfg.env.num_envs == 1 else build_batched_safety_driver
    for each in (*cfg.trained_with, *validated):
        require_player(get_task(cfg.env.task), each.class_name)
    partner: PartnerLike = OpenPartner()
    if not cfg.brings_partner:
        partner = build_partners(cfg.trained_with, env=env, sampler=cfg.sampler)
    with closing(env), single_torch_thread(), flushed_denormals():
        result = train(
            cfg,
            env=env,
            partner=partner,
            trainer_factory=trainer_factory,
            repo_root=repo_root,
            safety=None if of_parts else build_driver(env, cfg.safety),
            evaluator=evaluator or HeldOutEvaluator(cfg),
            watch=watch,
            validator=HeldOutEvaluator(cfg, validated) if validated else None,
            progress=progress,
            resume=resume,
            overwrite=overwrite,
            task_version=get_task(cfg.env.task).version,
            **parts,
        )
    if isinstance(partner, PartnerBase):
        partner.verify_weights()
    return result


@runtime_checkable
class EgoActionFactory(Protocol):
    """Makes the ego of one cell of a spike: called once per (seed, condition), acts in every step.

    Anything with this shape plugs an algorithm of one's own into the spikes.
    """

    def __call__(self, env: Any, seed: int) -> Callable[[Any], NDArray[np.float32]]:
        """Return what maps an observation to the ego's action in ``env``."""
        ...


class TrainedPolicyFactory:
    """An ego that is trained for each cell by `run_training`, then plays deterministically.

    The environment says who sits where and in which condition; the cell's seed is the training's.
    A training that is finished already, same configuration, code and packages, is not repeated: it
    would give the same bytes.

    Args:
        cfg: Configuration of every training, but for seed, seats and condition.
    """

    def __init__(self, *, cfg: EgoAHTConfig) -> None:
        self._cfg = cfg

    def __call__(self, env: Any, seed: int) -> Callable[[Any], NDArray[np.float32]]:
        """Return the trained policy for the seat ``env.ego_uid``; errors as `run_training`."""
        trainer = run_training(self.configuration(env, seed), resume=True).trainer

        def act(obs: Any) -> NDArray[np.float32]:
            return np.asarray(trainer.act(obs, deterministic=True), dtype=np.float32)

        return act

    def configuration(self, env: Any, seed: int) -> EgoAHTConfig:
        """Return what a cell trains with: one that is valid by itself."""
        cfg = self._cfg.model_dump()
        seats = cfg["env"]["agent_uids"]
        ego, partner = getattr(env, "ego_uid", seats[0]), getattr(env, "partner_uid", seats[1])
        cfg["seed"], cfg["env"]["agent_uids"] = seed, (ego, partner)
        cfg["env"]["condition_id"] = getattr(env, "condition_id", cfg["env"]["condition_id"])
        for settings in (cfg["partner"], *cfg["partners"]):
            settings["extra"]["uid"] = partner
            if "action_dim" in settings["extra"]:
                settings["extra"]["action_dim"] = str(env.action_space[partner].shape[0])
        return EgoAHTConfig.model_validate(cfg)


class HeldOutEvaluator:
    """Measures the deterministic policy on episodes that training never sees.

    Episode ``i`` is reset with seed ``i`` in an environment whose root seed is apart from the
    training seed; the filter is that of the training, and so are the partners unless others are
    given, each partner in turn.
    """

    def __init__(self, cfg: EgoAHTConfig, partners: Sequence[PartnerConfig] = ()) -> None:
        self._env = cfg.env.model_copy(update={"num_envs": 1})
        self._partners = tuple(partners) or cfg.trained_with
        self._safety = cfg.safety

    def __call__(self, policy: Policy, *, episodes: int, root_seed: int) -> Mapping[str, float]:
        """Return the figures of ``episodes`` episodes, see `summarize_episodes`."""
        results: list[EpisodeResult] = []
        for first, partner in enumerate(self._partners[:episodes]):
            with open_world(
                env=self._env,
                partner=partner,
                safety=self._safety,
                root_seed=root_seed,
                make_policy=lambda _: _CallablePolicy(policy),
            ) as world:
                results += [
                    run_episode(
                        world,
                        EpisodeTag(
                            seed=root_seed,
                            episode_idx=index,
                            initial_state_seed=index,
                            policy="training",
                            condition="filter_on" if self._safety.enabled else "filter_off",
                            partner=partner.class_name,
                        ),
                    )
                    for index in range(first, episodes, len(self._partners))
                ]
        return summarize_episodes(results, has_success=get_task(self._env.task).has_success)


class _CallablePolicy:
    """A function of the observation, or of the episode so far, as an `EgoPolicy`."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def reset(self, *, seed: int) -> None:
        """Forget the last episode."""
        del seed
        if isinstance(self._policy, RememberingPolicy):
            self._policy.reset()

    def act(self, obs: Observation) -> NDArray[Any]:
        """Return the function's action."""
        return self._policy(obs)


def learning_curve(curve: RewardCurve, *, label: str) -> LearningCurve:
    """Return what a report draws of a training; episodes that its end cut off are left out."""
    complete = [episode for episode in curve.episodes if episode.complete]
    return LearningCurve(
        steps=tuple(episode.end_frame for episode in complete),
        returns=tuple(episode.episode_return for episode in complete),
        evaluations=tuple(_point(record.frame, record.results) for record in curve.evaluations),
        label=label,
    )


class StoredTraining(NamedTuple):
    """A run as its files tell: its id, algorithm and task, how it stands, and its curve so far."""

    run_id: str
    what: str
    standing: str
    curve: LearningCurve


def read_training(card: Path, *, read: Callable[[Path], bytes]) -> StoredTraining:
    """Return the run of a card; curve and log are where `cadenza.aht.run` writes them.

    ``read`` returns the bytes of a file; files of other content raise any error.
    """
    run_id = card.name.removesuffix(".run.json")
    facts = parse_json_object(read(card), source=card.name)
    config = facts["config"]
    what = f"{config['algo']} on {config['env']['task']}"
    standing = f"{facts['status']}: {what}, {config['total_frames']} steps"
    curve = card.with_name(f"{run_id}.curve.json")
    log = card.parents[1] / "logs" / f"{run_id}.jsonl"
    label = f"seed {config['seed']}"
    if curve.is_file():
        found = _stored_curve(parse_json_object(read(curve), source=curve.name), label)
    else:
        lines = read(log).splitlines(keepends=True) if log.is_file() else []
        whole = (
            x for x in lines if x.endswith(b"\n")
        )  # of a run that goes on, the last may not be
        found = _logged_curve((parse_json_object(x, source=log.name) for x in whole), label)
    return StoredTraining(run_id, what, standing, found)


def _stored_curve(content: Mapping[str, Any], label: str) -> LearningCurve:
    """Return the curve that a finished run has written."""
    curve = RewardCurve(
        run_id=content["run_id"],
        episodes=[EpisodeRecord(**record) for record in content["episodes"]],
        evaluations=[EvaluationRecord(**record) for record in content["evaluations"]],
    )
    return learning_curve(curve, label=label)


def _logged_curve(events: Iterable[Mapping[str, Any]], label: str) -> LearningCurve:
    """Return how a run goes by its log: the mean return of each rollout, and evaluations."""
    rollouts: list[tuple[int, float]] = []
    points: list[EvaluationPoint] = []
    for event in events:
        if event.get("event") == "scalar" and event.get("mean_episode_return") is not None:
            rollouts.append((int(event["step"]), float(event["mean_episode_return"])))
        elif event.get("event") == "eval" and event.get("condition") == "periodic":
            points.append(_point(int(event["step"]), event))
    steps, returns = zip(*rollouts, strict=True) if rollouts else ((), ())
    return LearningCurve(
        steps=steps, returns=returns, window=1, evaluations=tuple(points), label=label
    )


def _point(step: int, results: Mapping[str, float | None]) -> EvaluationPoint:
    n, rate = round(results["n_episodes"] or 0), results.get("success_rate")
    return EvaluationPoint(
        step=step,
        n_episodes=n,
        n_success=None if rate is None else round(rate * n),
        mean_return=results["mean_episode_reward"],
    )


def summarize_episodes(episodes: list[EpisodeResult], *, has_success: bool) -> dict[str, float]:
    """Return mean return and rates with 95 % bounds; episodes are independent draws of one seed."""
    n = len(episodes)
    returns = np.array([episode.episode_return for episode in episodes], dtype=np.float64)
    mean = float(returns.mean())
    figures = {"n_episodes": float(n), "mean_episode_reward": mean}
    if n > 1:
        half_width = student_quantile(0.975, n - 1) * float(returns.std(ddof=1)) / sqrt(n)
        figures |= {
            "mean_episode_reward_ci_low": mean - half_width,
            "mean_episode_reward_ci_high": mean + half_width,
        }
    if has_success:
        figures |= _rate("success_rate", [episode.success for episode in episodes])
    contacts = [episode.contact for episode in episodes if episode.contact is not None]
    if len(contacts) == n:
        figures |= _rate("contact_rate", contacts)
    return figures


def _rate(name: str, outcomes: list[bool]) -> dict[str, float]:
    """Return a rate of this one training with exact bounds (rate/one-seed/clopper-pearson/v1)."""
    count = sum(outcomes)
    low, high = clopper_pearson_interval(count, len(outcomes))
    return {name: count / len(outcomes), f"{name}_ci_low": low, f"{name}_ci_high": high}


_RUNS: Final = "draft_zoo_runs"
#: Configuration per partner class, and changes to it. The checkpoint of the MAPPO actor has no room
#: for the moments of observations.
_CONFIGS: Final[Mapping[str, tuple[str, ...]]] = {
    "frozen_mappo": ("train/mpe_cooperative_push_mappo", "ppo.normalize_observations=false"),
    "frozen_harl": ("train/mpe_cooperative_push_happo",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedMember:
    """One checkpoint of the zoo."""

    spec: PartnerSpec
    path: Path
    frames: int
    mean_return: float


def train_draft_zoo(
    folder: Path,
    *,
    frames: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> list[TrainedMember]:
    """Train the learned partners of `make_phase0_draft_zoo` and store their checkpoints.

    Args:
        folder: Artifacts folder, see `cadenza.partners.weights`; a run's own files go to the
            folder ``draft_zoo_runs`` in it. Earlier checkpoints are replaced.
        frames: Frames per partner instead of its ``checkpoint_step``, > 0, for trying out.
        progress: Called with the name of each partner before its training.
    """
    if frames is not None and frames < 1:
        raise ConfigurationError(f"train_draft_zoo: expected frames >= 1, got {frames}.")
    scripted, *learned = make_phase0_draft_zoo()
    members: list[TrainedMember] = []
    for spec in learned:
        if progress is not None:
            progress(spec.class_name)
        mate = scripted.extra["uid"]
        members.append(_train(spec, mate, folder, frames or spec.checkpoint_step))
    return members


def _train(spec: PartnerSpec, mate: str, folder: Path, frames: int | None) -> TrainedMember:
    """Train one partner beside ``mate`` and store its actor under the address of its spec."""
    name, *changes = _CONFIGS[spec.class_name]
    cfg = load_config(
        config_path=shipped_config(name),
        overrides=[
            f"seed={spec.seed}",
            f"total_frames={frames}",
            f"checkpoint_every={frames}",
            f"env.agent_uids=[{spec.extra['uid']},{mate}]",
            f"partner.extra.uid={mate}",
            *changes,
        ],
    )
    runs = folder / _RUNS
    cfg = cfg.model_copy(update={"artifacts_root": runs, "log_dir": runs / "logs"})
    curve, _ = run_training(cfg, overwrite=True)
    payload, metadata = load_checkpoint(
        uri=ARTIFACTS_SCHEME + curve.checkpoint_paths[-1].name, artifacts_root=runs
    )
    path = save_checkpoint(
        state_dict=_mappo_actor(payload["agent"]["network"]) if "agent" in payload else payload,
        uri=f"local://{str(spec.weights_uri).removeprefix(ARTIFACTS_SCHEME)}",
        metadata=metadata,
        artifacts_root=folder,
    )
    mean_return = float(curve.evaluations[-1].results["mean_episode_reward"])
    return TrainedMember(spec=spec, path=path, frames=metadata.step, mean_return=mean_return)


def _mappo_actor(network: Mapping[str, Any]) -> dict[str, Any]:
    """Return the checkpoint of `FrozenMAPPOPartner` that holds a trained MAPPO policy."""
    actor = {
        f"{name}.{kind}": network[f"actor.layers.{index}.{kind}"]
        for index, name in enumerate(("fc1", "fc2", "head"))
        for kind in ("weight", "bias")
    }
    return {"actor": {**actor, "log_std": network["head.log_std"]}, "activation_func": "tanh"}


def closest_approach() -> tuple[float, float]:
    """Drive the ego straight at a partner that stands still, behind the filter; for the doctor.

    Returns:
        Smallest distance of the centres and the distance of contact, m.
    """
    env = CrossingEnv()
    env.reset(seed=0)
    driver = SafetyDriver.from_env(env, ego_uid=env.ego_uid, options=SafetyOptions())
    driver.begin_run(0)
    driver.begin_episode()
    still = np.zeros(2, dtype=np.float32)
    closest = float("inf")
    ended = False
    while not ended:
        positions = env.robot_positions()
        towards = positions[env.partner_uid] - positions[env.ego_uid]
        nominal = ACCELERATION_LIMIT_EGO * towards / float(np.abs(towards).max())
        action = driver.step(nominal).action.astype(np.float32)
        _, _, terminated, truncated, info = env.step({env.ego_uid: action, env.partner_uid: still})
        closest = min(closest, float(info["min_distance"]))
        ended = terminated or truncated
    return closest, CONTACT_DISTANCE


def short_training_digest() -> str:
    """Train for two rollouts and return the SHA-256 of the checkpoint; for the doctor."""
    with tempfile.TemporaryDirectory(prefix="cadenza-self-test-") as folder:
        config = EgoAHTConfig.model_validate(
            {
                "total_frames": 256,
                "checkpoint_every": 256,
                "artifacts_root": folder,
                "log_dir": folder,
                "env": {"task": "mpe_cooperative_push"},
                "partner": {"extra": {"uid": "partner"}},
                "happo": {"rollout_length": 128, "batch_size": 64},
                "runtime": {"device": "cpu"},
            }
        )
        result = run_training(config, repo_root=Path(folder))
        return sha256_file(result.curve.checkpoint_paths[-1])
