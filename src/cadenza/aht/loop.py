"""The training loop, for one environment and for a batch of them.

One step:  ego acts, partner acts, filter, environment, record, learn.
Boundary:  after every ``rollout_length`` steps the learner updates; then, when due, a periodic
           evaluation and a checkpoint. The next episode begins at the top of the next step, so a
           checkpoint never holds half of a reset.
Seeds:     the first episode takes the run's seed itself, episode k >= 1 the integer of the stream
           ``training.episode.{k}``.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from cadenza.aht.checkpointing import Checkpointer
from cadenza.aht.config import EgoAHTConfig
from cadenza.aht.loop_state import LoopState
from cadenza.aht.run import Run
from cadenza.aht.safety_station import SafetyStation
from cadenza.aht.types import EgoTrainer, EvaluationRecord, Evaluator
from cadenza.core.arrays import FloatArray, require_finite
from cadenza.core.errors import InputError
from cadenza.core.runlog import RunLogger, log_eval, log_scalars
from cadenza.core.seeding import derive_substream
from cadenza.core.types import Observation, PartnerLike

#: Stream family of the episode seeds.
EPISODE_STREAM: Final = "training.episode"
#: What the learner pays for the filter's changes where there is no filter.
_NO_PENALTY: Final = np.zeros(())


@runtime_checkable
class RowResettablePartner(Protocol):
    """A partner that can begin a new episode in one row of a batch."""

    def reset_row(self, row: int, *, seed: int) -> None:
        """Forget the last episode of ``row``."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopParts:
    """What the loop drives: a run, its learner and log, its filter if any, its checkpoints."""

    run: Run
    trainer: EgoTrainer
    log: RunLogger
    station: SafetyStation | None
    checkpointer: Checkpointer

    @property
    def config(self) -> EgoAHTConfig:
        """Checked configuration."""
        return self.run.config


def episode_seed(run_seed: int, episode_index: int) -> int:
    """Return the seed of episode ``episode_index`` of the run."""
    if episode_index == 0:
        return run_seed
    return derive_substream(f"{EPISODE_STREAM}.{episode_index}", root_seed=run_seed).integer_seed()


def total_iterations(config: EgoAHTConfig) -> int:
    """Return the control steps of a whole run; frames that do not fill a batch are left out."""
    return config.total_frames // config.env.num_envs


def run_scalar_loop(parts: LoopParts, state: LoopState, obs: Observation) -> None:
    """Train in one environment until the run's frames are done.

    ``state`` is changed in place; ``obs`` is unused if it awaits a reset.
    """
    ego_uid, partner_uid = parts.config.env.agent_uids
    env, partner = parts.run.env, parts.run.partner
    trainer, station = parts.trainer, parts.station
    iterations = total_iterations(parts.config)
    while state.iterations < iterations:
        if state.awaiting_reset:
            obs = begin_next_episode(parts, state)
        nominal = trainer.act(obs)
        partner_action = partner.act(obs)
        executed, penalty = (nominal, _NO_PENALTY) if station is None else station.filter(nominal)
        obs, raw_reward, raw_terminated, raw_truncated, info = env.step(
            {ego_uid: executed, partner_uid: partner_action}
        )
        reward, terminated = finite_reward(raw_reward), bool(raw_terminated)
        truncated = bool(raw_truncated) and not terminated  # termination dominates
        done = terminated or truncated
        trainer.observe(obs, reward - float(penalty), done, truncated=truncated)
        state.replay.append(executed)
        state.record_step((reward,), info)
        if done:
            flag = info.get("success")
            state.finish_episode(0, None if flag is None else bool(flag))
            state.awaiting_reset = True
        pass_boundary(parts, state, obs, episode_ended=done)


def begin_next_episode(parts: LoopParts, state: LoopState) -> Observation:
    """Reset environment, partner and filter for the next episode; return its observation."""
    state.episode_index += 1
    seed = episode_seed(parts.config.seed, state.episode_index)
    obs: Observation = parts.run.env.reset(seed=seed)[0]
    parts.run.partner.reset(seed=seed)
    if parts.station is not None:
        parts.station.begin_episode()
    state.replay.restart(seed)
    state.awaiting_reset = False
    return obs


def run_vector_loop(parts: LoopParts, state: LoopState, obs: Observation) -> None:
    """Train in a batch of environments that reset themselves; arguments as `run_scalar_loop`."""
    ego_uid, partner_uid = parts.config.env.agent_uids
    env, partner = parts.run.env, parts.run.partner
    trainer, station = parts.trainer, parts.station
    count = parts.config.env.num_envs
    iterations = total_iterations(parts.config)
    while state.iterations < iterations:
        nominal = trainer.act(obs)
        partner_action = partner.act(obs)
        executed, penalty = (nominal, _NO_PENALTY) if station is None else station.filter(nominal)
        obs, raw_reward, raw_terminated, raw_truncated, info = env.step(
            {ego_uid: executed, partner_uid: partner_action}
        )
        rewards: FloatArray = batch_of("reward", raw_reward, count, np.float64)
        require_finite("train: rewards", rewards)
        terminated: NDArray[np.bool_] = batch_of("terminated", raw_terminated, count, np.bool_)
        truncated = batch_of("truncated", raw_truncated, count, np.bool_) & ~terminated
        done = terminated | truncated
        final_obs = info.get("final_observation")
        trainer.observe(obs, rewards - penalty, done, truncated=truncated, final_obs=final_obs)
        state.replay.append(executed)
        state.record_step(rewards.tolist(), info)
        ended: list[int] = np.flatnonzero(done).tolist()
        if ended:
            if station is not None:
                station.begin_rows(ended)
            flags = info.get("success")
            flags = None if flags is None else batch_of("success", flags, count, np.bool_).tolist()
            for row in ended:
                state.finish_episode(row, None if flags is None else flags[row])
            state.episode_index = reset_partner_rows(
                partner, ended, parts.config.seed, state.episode_index
            )
        pass_boundary(parts, state, obs, episode_ended=bool(ended))


def reset_partner_rows(
    partner: PartnerLike, rows: list[int], run_seed: int, episode_index: int
) -> int:
    """Begin a new partner episode in each of ``rows``, in order; return the new episode index."""
    resettable = isinstance(partner, RowResettablePartner)
    for row in rows:
        episode_index += 1
        if resettable:
            partner.reset_row(row, seed=episode_seed(run_seed, episode_index))
    return episode_index


def pass_boundary(
    parts: LoopParts, state: LoopState, obs: Observation, *, episode_ended: bool
) -> None:
    """Do what is due after a control step: update, evaluation, checkpoint, progress."""
    config = parts.config
    is_last = state.iterations == total_iterations(config)
    at_boundary = state.iterations % config.rollout_length == 0
    updated = at_boundary or (is_last and config.ppo_extras.flush_partial_rollout)
    if updated:
        parts.trainer.update()
        _log_rollout(parts, state)
    evaluation_due = _crossed(config.evaluation.every_frames, state.frames, config.env.num_envs)
    if parts.run.evaluator is not None and (is_last or evaluation_due):
        _evaluate(parts, parts.run.evaluator, state)
    if is_last or _crossed(config.checkpoint_every, state.frames, config.env.num_envs):
        parts.checkpointer.save(obs)
    if parts.run.progress is not None and (updated or episode_ended or is_last):
        parts.run.progress(state.frames, config.total_frames, state.last_return)


def finite_reward(reward: Any) -> float:
    """Return ``reward`` as a float.

    Raises:
        InputError: It is NaN or infinite.
    """
    value = float(reward)
    if not math.isfinite(value):
        raise InputError(
            f"train: expected a finite reward from the environment, got {value}; look for a "
            "division by zero or an exploding state in its step."
        )
    return value


def batch_of(name: str, values: Any, count: int, dtype: type[Any]) -> NDArray[Any]:
    """Return ``values`` as an array of shape (``count``,); a scalar stands for all.

    Raises:
        InputError: Another shape.
    """
    detach: Callable[[], Any] | None = getattr(values, "detach", None)
    plain = values if detach is None else detach().cpu().numpy()
    array = np.asarray(plain, dtype=dtype)
    if array.ndim == 0:
        return np.full(count, array, dtype=dtype)
    if array.shape != (count,):
        raise InputError(
            f"train: expected {name} of shape ({count},) from a batch of env.num_envs = {count} "
            f"environments, got {array.shape}; check env.num_envs."
        )
    return array


def _log_rollout(parts: LoopParts, state: LoopState) -> None:
    """Write the events of a rollout boundary and start the next window."""
    step = state.frames
    if parts.station is not None:
        parts.log.info("safety_telemetry", step=step, **parts.station.window_figures())
    parts.log.info("rollout_update", step=step, last_reward=state.window.last_reward)
    log_scalars(parts.log, step=step, namespace="rollout", **state.window.figures())
    state.window.clear()


def _evaluate(parts: LoopParts, evaluator: Evaluator, state: LoopState) -> None:
    """Measure the deterministic policy and record the figures."""
    settings = parts.config.evaluation

    def policy(obs: Observation) -> NDArray[Any]:
        return parts.trainer.act(obs, deterministic=True)

    measured: Mapping[str, float] = evaluator(
        policy, episodes=settings.episodes, root_seed=settings.root_seed
    )
    results = {name: float(value) for name, value in measured.items()}
    state.curve.evaluations.append(EvaluationRecord(frame=state.frames, results=results))
    log_eval(parts.log, step=state.frames, condition="periodic", **results)


def _crossed(every: int, frames: int, step: int) -> bool:
    """Return whether the last ``step`` frames reached a multiple of ``every``; 0 never."""
    return every > 0 and frames // every > (frames - step) // every
