"""Ego learner: PPO with HARL's actor, beside a frozen partner.

Collects on-policy transitions through `act` and `observe`, learns from them in `update`.

Equations:  advantages as in `cadenza.learn.advantages`, steps as in
            `cadenza.learn.algorithms.happo`; returns_t = A_t + V(s_t).
Axes:       N = parallel environments, O = observation, A = action.
Randomness: one torch generator, seeded by the stream ``training.ego_ppo.torch``, initialises the
            networks and then draws the actions; ``training.ego_ppo.minibatch`` shuffles.
Limits:     state values are computed for the whole rollout at its end, in one batch; parameters
            have not changed since the actions were drawn, so only rounding (1e-7) tells it from
            evaluating them step by step. Log-densities are bitwise those of the single steps.
"""

import copy
import math
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict
from typing import Any, ClassVar, Final

import numpy as np
import torch
from gymnasium.spaces import Box
from numpy.typing import NDArray
from torch import Tensor

from cadenza.aht.config import EgoAHTConfig
from cadenza.aht.ego_ppo_flags import batch_flags, scalar_flags
from cadenza.aht.ego_ppo_rollout import RolloutBuffer, RolloutShape, network_input
from cadenza.aht.ego_ppo_setup import assert_partner_is_frozen, ego_spaces, flat_size
from cadenza.aht.types import EventLogger
from cadenza.core.arrays import Float32Array, require_finite
from cadenza.core.device import deterministic_algorithms, resolve_device
from cadenza.core.errors import CheckpointError, InputError, NotReadyError
from cadenza.core.runlog import log_scalars
from cadenza.core.seeding import derive_substream
from cadenza.core.types import Observation, PartnerLike
from cadenza.learn.advantages import compute_gae, normalize_advantages
from cadenza.learn.algorithms.happo import actor_optimizer, critic_optimizer, gaussian_log_prob
from cadenza.learn.algorithms.ppo_epochs import PPOLearner, PPOOptions, PPORollout, run_ppo_epochs
from cadenza.learn.generator_state import generator_state, set_generator_state
from cadenza.learn.loaded_state import complete_state, require_version
from cadenza.learn.nn.gaussian_actor import (
    MAX_STANDARD_DEVIATION,
    STANDARD_DEVIATION_KEY,
    GaussianActor,
    actor_mean,
)
from cadenza.learn.nn.value_critic import ValueCritic

__all__ = ["EgoPPOTrainer", "compute_gae", "normalize_advantages"]

#: Stream whose integer seeds the torch generator.
TORCH_STREAM: Final = "training.ego_ppo.torch"
#: Stream of the minibatch permutations.
MINIBATCH_STREAM: Final = "training.ego_ppo.minibatch"
#: Layout version of `EgoPPOTrainer.training_state`.
TRAINING_STATE_VERSION: Final = 1
_FIRST_ENV: Final = np.zeros(1, dtype=np.int64)
#: Keys of a policy checkpoint.
CHECKPOINT_KEYS: Final = frozenset({"actor", "actor_optim", "critic", "critic_optim"})


class EgoSeat:
    """Takes the ego's state out of observations.

    Args:
        ego_uid: The ego's seat.
        observation_dim: O.
        device: Where the networks live.
    """

    def __init__(self, ego_uid: str, observation_dim: int, device: torch.device) -> None:
        self.ego_uid = ego_uid
        self._observation_dim = observation_dim
        self._on_cpu = device.type == "cpu"

    def state(self, obs: Observation) -> Any:
        """Return the ego's state as an array; as a tensor if it is one and lives off the CPU.

        Raises:
            InputError: It is missing, or of another shape than (O,) or (N, O).
        """
        try:
            state: Any = obs["agent"][self.ego_uid]["state"]
        except KeyError as error:
            raise InputError(
                f"EgoPPOTrainer: expected obs['agent'][{self.ego_uid!r}]['state'], got no key "
                f"{error}; wrap the environment so that the ego has a flat state."
            ) from error
        if isinstance(state, torch.Tensor):
            state = _host_array(state) if self._on_cpu else state.detach()
        if state.ndim not in (1, 2) or state.shape[-1] != self._observation_dim:
            raise InputError(
                f"EgoPPOTrainer: expected a state of shape ({self._observation_dim},) or "
                f"(N, {self._observation_dim}), got {tuple(state.shape)}."
            )
        return state

    def matching_state(self, obs: Observation, envs: tuple[int, ...]) -> Any:
        """Return the ego's state; raise unless it has the shape of the one acted on.

        Args:
            obs: Observation after a step.
            envs: (N,) if the state acted on was a batch, else ().

        Raises:
            InputError: It is missing or of another shape.
        """
        state = self.state(obs)
        if state.shape[:-1] != envs:
            raise InputError(
                "EgoPPOTrainer.observe: expected a state of shape "
                f"{(*envs, self._observation_dim)}, as act had, got {tuple(state.shape)}."
            )
        return state

    def final_states(
        self, final_obs: Observation | None, cut: NDArray[np.int64], num_envs: int
    ) -> Any:
        """Return the last states of the environments ``cut``, shape (K, O).

        Raises:
            InputError: There is no observation before the reset, or it is of another shape.
        """
        if final_obs is None:
            raise InputError(
                "EgoPPOTrainer.observe: expected final_obs (the batched observation before the "
                f"reset), got None though environments {cut.tolist()} were truncated; pass "
                "info['final_observation']."
            )
        return self.matching_state(final_obs, (num_envs,))[cut]


def batch_rewards(reward: Any, num_envs: int) -> Float32Array:
    """Return rewards of shape (N,); one number stands for every environment.

    Raises:
        InputError: They are of another shape, or not finite.
    """
    rewards = np.asarray(reward, dtype=np.float32)
    if rewards.shape not in ((), (num_envs,)):
        raise InputError(
            f"EgoPPOTrainer.observe: expected rewards of shape ({num_envs},), got {rewards.shape}."
        )
    require_finite("EgoPPOTrainer.observe: reward", rewards)
    return np.broadcast_to(rewards, (num_envs,))


def _host_array(state: torch.Tensor) -> Any:
    """Return ``state`` as a numpy array without gradient."""
    return state.detach().cpu().numpy()


class EgoPPOTrainer:
    """Learns the ego's policy; prefer `from_config`, which reads the sizes off the environment.

    Args:
        cfg: Checked configuration; ``seed``, ``happo``, ``ppo_extras``, ``runtime`` and
            ``total_frames`` are read.
        ego_uid: The ego's seat.
        ego_obs_space: Space of the ego's flat state, shape (O,).
        ego_act_space: Space of the ego's action, shape (A,).
        partner: Checked to be frozen before anything is allocated, and not kept.
        device: Where the networks live; the CPU by default.
        logger: Receives one event of metrics per update.

    Raises:
        ConfigurationError: The partner has a trainable parameter.
        InputError: A space is not flat.
    """

    #: Advantages go through the functions of `cadenza.learn.advantages`.
    USES_MODULE_GAE: ClassVar[bool] = True

    def __init__(
        self,
        *,
        cfg: EgoAHTConfig,
        ego_uid: str,
        ego_obs_space: Box,
        ego_act_space: Box,
        partner: PartnerLike,
        device: torch.device | None = None,
        logger: EventLogger | None = None,
    ) -> None:
        assert_partner_is_frozen(partner)
        self._cfg = cfg
        self._logger = logger
        self._device = torch.device("cpu") if device is None else device
        self._observation_dim = flat_size("observation", ego_obs_space)
        self._action_dim = flat_size("action", ego_act_space)
        self._seat = EgoSeat(ego_uid, self._observation_dim, self._device)
        seed = derive_substream(TORCH_STREAM, root_seed=cfg.seed).integer_seed()
        # Weights are drawn on the CPU: their first values do not depend on the device.
        self._generator = torch.Generator().manual_seed(seed)
        self._learner = build_learner(
            observation_dim=self._observation_dim,
            action_dim=self._action_dim,
            hidden_dim=cfg.happo.hidden_dim,
            learning_rate=cfg.happo.lr,
            max_action_std=cfg.ppo_extras.max_action_std,
            generator=self._generator,
            device=self._device,
        )
        if self._device.type != "cpu":
            self._generator = torch.Generator(self._device).manual_seed(seed)
        self._minibatch_rng = derive_substream(MINIBATCH_STREAM, root_seed=cfg.seed).default_rng()
        # Aliases without gradient: every change to a parameter happens in place.
        self._actor_values = [p.detach() for p in self._learner.actor.parameters()]
        self._deviation = self._learner.actor.standard_deviation().detach()
        self._buffer: RolloutBuffer | None = None
        self._pending = False
        self._batched = False
        self._frames = 0

    @classmethod
    def from_config(
        cls,
        cfg: EgoAHTConfig,
        *,
        env: Any,
        partner: PartnerLike,
        ego_uid: str,
        logger: EventLogger | None = None,
    ) -> "EgoPPOTrainer":
        """Return a trainer for the seat ``ego_uid`` of ``env``; this is the `TrainerFactory`.

        Raises:
            ConfigurationError: The partner has a trainable parameter.
            TypeError: The ego's observation or action space is not a Box.
            DeviceUnavailableError: The configured device is not on this machine.
        """
        assert_partner_is_frozen(partner)
        observation_space, action_space = ego_spaces(env, ego_uid)
        return cls(
            cfg=cfg,
            ego_uid=ego_uid,
            ego_obs_space=observation_space,
            ego_act_space=action_space,
            partner=partner,
            device=resolve_device(cfg.runtime.device),
            logger=logger,
        )

    def act(self, obs: Observation, *, deterministic: bool = False) -> Float32Array:
        """Return the ego's action, shape (A,), or (N, A) for a batched state.

        Args:
            obs: Holds ``obs["agent"][ego_uid]["state"]``, array or tensor, (O,) or (N, O).
            deterministic: Return the policy's mean. Such a query draws nothing, is not part of the
                rollout and may come at any time. A drawn action that is never observed is
                replaced by the next one.

        Raises:
            InputError: The state has the wrong shape, or the action is not finite.
            NotReadyError: The rollout is full; `update` comes first.
        """
        state = self._seat.state(obs)
        batched = state.ndim > 1
        if deterministic:
            inputs = network_input(state, self._device)
            mean = actor_mean(self._actor_values, inputs if batched else inputs[None])
            actions = mean.cpu().numpy()
        else:
            buffer = self._rollout_for(len(state) if batched else 1)
            mean = actor_mean(self._actor_values, buffer.stage(state))
            actions = buffer.stage_action(mean, self._deviation, self._generator)
            self._pending, self._batched = True, batched
        if not math.isfinite(actions.sum()):
            raise InputError(
                f"EgoPPOTrainer.act: expected finite actions, got {actions}; the state of "
                f"{self._seat.ego_uid!r} or the policy's weights are not finite."
            )
        return actions if batched else actions[0]

    def observe(
        self,
        obs: Observation,
        reward: float | NDArray[Any],
        done: bool | NDArray[np.bool_],
        *,
        truncated: bool | NDArray[np.bool_] = False,
        final_obs: Observation | None = None,
        terminated: bool | NDArray[np.bool_] | None = None,
    ) -> None:
        """Record what followed the last drawn action.

        Args:
            obs: Observation after the step (after the automatic reset, when batched).
            reward: Reward of the step, a number or shape (N,).
            done: The step ended the episode, for whichever reason; flag or shape (N,).
            truncated: A time limit ended it; flag or shape (N,).
            final_obs: Observation before the automatic reset, of every environment.
            terminated: The task itself ended it. A step that is both terminated and truncated
                counts as terminated. None means ``done and not truncated``.

        Raises:
            NotReadyError: No drawn action is waiting.
            InputError: A state has another shape than the one acted on, the flags contradict each
                other, the reward is not finite, or a batched truncation lacks ``final_obs``.
        """
        buffer = self._buffer
        if buffer is None or not self._pending:
            raise NotReadyError(
                "EgoPPOTrainer.observe: expected act(obs) before it, got no drawn action to "
                "complete; alternate act and observe (deterministic actions are not recorded)."
            )
        envs = buffer.shape.num_envs
        next_state = self._seat.matching_state(obs, (envs,) if self._batched else ())
        if self._batched:
            rewards = batch_rewards(reward, envs)
            flags = batch_flags(done, truncated, terminated, num_envs=envs)
            cut = np.flatnonzero(flags.boundary & ~flags.terminated)
            if cut.size:
                buffer.add_final_states(cut, self._seat.final_states(final_obs, cut, envs))
            buffer.commit(rewards, flags.terminated, flags.boundary, next_state)
        else:
            value = float(reward)
            if not math.isfinite(value):
                raise InputError(f"EgoPPOTrainer.observe: expected a finite reward, got {value}.")
            terminal, boundary = scalar_flags(done, truncated, terminated)
            if boundary and not terminal:
                last = next_state
                if final_obs is not None:
                    last = self._seat.matching_state(final_obs, ())
                buffer.add_final_states(_FIRST_ENV, last.reshape(1, -1))
            buffer.commit(value, terminal, boundary, next_state)
        self._pending = False
        self._frames += envs

    def update(self) -> None:
        """Learn from everything observed since the last update, then forget it.

        Does nothing when nothing was observed. A drawn action that was not observed is dropped.

        Raises:
            InputError: An observation is not finite, or the step left finite numbers; then the
                learning rate is too high or the rewards are too large.
        """
        buffer, self._pending = self._buffer, False
        if buffer is None or buffer.length == 0:
            return
        happo, extras = self._cfg.happo, self._cfg.ppo_extras
        options = PPOOptions(
            epochs=happo.n_epochs,
            batch_size=happo.batch_size,
            clip_epsilon=happo.clip_eps,
            target_kl=extras.target_kl,
            critic_max_gradient_norm=extras.critic_max_grad_norm,
        )
        on_cpu = self._device.type == "cpu"
        reproducible = on_cpu and self._cfg.runtime.deterministic_torch
        with deterministic_algorithms() if reproducible else nullcontext():
            learning_rate = self._set_learning_rate(buffer.length * buffer.shape.num_envs)
            rollout, statistics = prepare_rollout(
                buffer, self._learner.critic, self._deviation, happo.gamma, happo.gae_lambda
            )
            metrics = run_ppo_epochs(self._learner, rollout, options, self._minibatch_rng)
            self._deviation = self._learner.actor.standard_deviation().detach()
        buffer.clear()
        scalars = {**asdict(metrics), **statistics, "learning_rate": learning_rate}
        for name, value in scalars.items():
            if not math.isfinite(value):
                raise InputError(
                    f"EgoPPOTrainer.update: expected finite numbers, got {name} = {value} at frame "
                    f"{self._frames}; lower happo.lr or scale the rewards."
                )
        if self._logger is not None:
            log_scalars(self._logger, step=self._frames, namespace="train", **scalars)

    def state_dict(self) -> dict[str, Any]:
        """Return the policy checkpoint: networks and optimisers, loadable with weights_only."""
        return learner_state(self._learner)

    def load_state_dict(self, payload: Mapping[str, Any]) -> None:
        """Take over networks and optimisers; the rollout in progress is dropped.

        Args:
            payload: What `state_dict` returned, for the same sizes.

        Raises:
            CheckpointError: A part is missing or has other sizes.
        """
        load_learner_state(self._learner, payload)
        self._deviation = self._learner.actor.standard_deviation().detach()
        self._pending = False
        if self._buffer is not None:
            self._buffer.clear()

    def training_state(self) -> dict[str, Any]:
        """Return everything the future depends on, also in the middle of a rollout.

        Tensors and JSON scalars only. A trainer of the same configuration that loads it continues
        bit for bit.
        """
        buffer = self._buffer
        return {
            "version": TRAINING_STATE_VERSION,
            "checkpoint": copy.deepcopy(self.state_dict()),
            "generator": self._generator.get_state(),
            "minibatch_generator": generator_state(self._minibatch_rng),
            "frames": self._frames,
            "pending": self._pending,
            "batched": self._batched,
            "rollout": None if buffer is None else buffer.state(staged=self._pending),
        }

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        """Continue where `training_state` was taken.

        Raises:
            CheckpointError: The state has another version, is incomplete, or belongs to another
                configuration.
        """
        require_version("EgoPPOTrainer.load_training_state", state, TRAINING_STATE_VERSION)
        with complete_state("EgoPPOTrainer.load_training_state", "this configuration"):
            self.load_state_dict(state["checkpoint"])
            self._generator.set_state(state["generator"])
            set_generator_state(self._minibatch_rng, state["minibatch_generator"])
            self._frames = int(state["frames"])
            self._pending, self._batched = bool(state["pending"]), bool(state["batched"])
            rollout = state["rollout"]
            if rollout is not None:
                self._rollout_for(int(rollout["num_envs"])).load(rollout)

    def _rollout_for(self, num_envs: int) -> RolloutBuffer:
        """Return the buffer for N = ``num_envs``; allocate it if the last rollout is done.

        Raises:
            InputError: A rollout with another N is in progress.
        """
        buffer = self._buffer
        if buffer is not None and buffer.shape.num_envs == num_envs:
            return buffer
        if buffer is not None and buffer.length:
            raise InputError(
                f"EgoPPOTrainer.act: expected a state of {buffer.shape.num_envs} environments (the "
                f"rollout in progress), got {num_envs}; use deterministic=True for evaluation."
            )
        shape = RolloutShape(
            capacity=self._cfg.happo.rollout_length,
            num_envs=num_envs,
            observation_dim=self._observation_dim,
            action_dim=self._action_dim,
        )
        self._buffer = RolloutBuffer(shape, self._device)
        return self._buffer

    def _set_learning_rate(self, transitions: int) -> float:
        """Return the step size of this update, lowered by the share of frames done before it."""
        rate = self._cfg.happo.lr
        if self._cfg.ppo_extras.lr_decay:
            before = self._frames - transitions
            rate *= max(0.0, 1.0 - before / self._cfg.total_frames)
        for optimizer in (self._learner.actor_optimizer, self._learner.critic_optimizer):
            for group in optimizer.param_groups:
                group["lr"] = rate
        return rate


def build_learner(
    *,
    observation_dim: int,
    action_dim: int,
    hidden_dim: int,
    learning_rate: float,
    max_action_std: float,
    generator: torch.Generator,
    device: torch.device,
) -> PPOLearner:
    """Return networks and optimisers on ``device``.

    Args:
        observation_dim: O.
        action_dim: A.
        hidden_dim: Width of both hidden layers.
        learning_rate: Of both optimisers.
        max_action_std: Bound of the actions' standard deviation, in units of the action.
        generator: CPU generator; the actor's draws come first, then the critic's.
        device: Where the networks live.
    """
    actor = GaussianActor(
        observation_dim,
        action_dim,
        hidden_sizes=(hidden_dim, hidden_dim),
        generator=generator,
        max_standard_deviation=max_action_std,
    ).to(device)
    critic = ValueCritic(
        observation_dim, hidden_sizes=(hidden_dim, hidden_dim), generator=generator
    ).to(device)
    return PPOLearner(
        actor=actor,
        actor_optimizer=actor_optimizer(actor.parameters(), learning_rate),
        critic=critic,
        critic_optimizer=critic_optimizer(critic.parameters(), learning_rate),
    )


def learner_state(learner: PPOLearner) -> dict[str, Any]:
    """Return the policy checkpoint, sharing memory with ``learner``.

    A bound of the standard deviation other than HARL's, which no weight shows, is a key of its own.
    """
    state: dict[str, Any] = {
        "actor": learner.actor.state_dict(),
        "actor_optim": learner.actor_optimizer.state_dict(),
        "critic": learner.critic.state_dict(),
        "critic_optim": learner.critic_optimizer.state_dict(),
    }
    bound = learner.actor.max_standard_deviation
    if bound != MAX_STANDARD_DEVIATION:
        state[STANDARD_DEVIATION_KEY] = bound
    return state


def load_learner_state(learner: PPOLearner, payload: Mapping[str, Any]) -> None:
    """Copy a policy checkpoint into ``learner``.

    Raises:
        CheckpointError: A part is missing, has other sizes or another bound of the deviation.
    """
    missing = CHECKPOINT_KEYS - payload.keys()
    if missing:
        raise CheckpointError(
            f"policy checkpoint: expected keys {sorted(CHECKPOINT_KEYS)}, "
            f"got {sorted(payload)}; {sorted(missing)} missing."
        )
    bound = payload.get(STANDARD_DEVIATION_KEY, MAX_STANDARD_DEVIATION)
    if bound != learner.actor.max_standard_deviation:
        raise CheckpointError(
            "policy checkpoint: expected a policy whose standard deviation is bounded by "
            f"{learner.actor.max_standard_deviation}, got {bound}; set "
            f"ppo_extras.max_action_std={bound}."
        )
    try:
        learner.actor.load_state_dict(payload["actor"])
        learner.critic.load_state_dict(payload["critic"])
        learner.actor_optimizer.load_state_dict(payload["actor_optim"])
        learner.critic_optimizer.load_state_dict(payload["critic_optim"])
    except (RuntimeError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"policy checkpoint: expected the sizes of this configuration: {error}"
        ) from error


@torch.no_grad()
def prepare_rollout(
    buffer: RolloutBuffer,
    critic: ValueCritic,
    deviation: Tensor,
    gamma: float,
    gae_lambda: float,
) -> tuple[PPORollout, dict[str, float]]:
    """Return what an update learns from, and statistics of raw advantages and values.

    Args:
        buffer: At least one step.
        critic: Values the states; gradients are off.
        deviation: σ with which the actions were drawn, shape (A,).
        gamma: Discount per step.
        gae_lambda: Weight of longer advantage estimates.

    Raises:
        InputError: An observation is not finite.
    """
    device, steps = buffer.observations.device, buffer.length
    inputs = buffer.critic_inputs()
    require_finite("EgoPPOTrainer.update: observations", inputs.cpu().numpy())
    values = critic(inputs).squeeze(-1).cpu().numpy()
    current, following = buffer.split_values(values)
    rewards, boundaries = buffer.rewards[:steps], buffer.boundaries[:steps]
    advantages = compute_gae(
        rewards, current, following, boundaries, gamma=gamma, gae_lambda=gae_lambda
    )
    actions = buffer.actions[:steps].flatten(0, 1)  # (n, A), time-major
    means = buffer.means[:steps].flatten(0, 1)
    rollout = PPORollout(
        observations=buffer.observations[:steps].flatten(0, 1),
        actions=actions,
        old_log_probs=gaussian_log_prob(actions, means, deviation),
        advantages=_column(normalize_advantages(advantages), device),
        returns=_column(advantages + current, device),
    )
    statistics = {
        "advantage_mean": float(advantages.mean(dtype=np.float64)),
        "advantage_std": float(advantages.std(dtype=np.float64)),
        "value_mean": float(current.mean(dtype=np.float64)),
        "value_std": float(current.std(dtype=np.float64)),
    }
    return rollout, statistics


def _column(values: Any, device: torch.device) -> Tensor:
    """Return ``values`` as a column, shape (n, 1)."""
    return torch.as_tensor(values, device=device).reshape(-1, 1)
