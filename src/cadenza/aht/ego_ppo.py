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

from cadenza.aht.config import EgoAHTConfig
from cadenza.aht.ego_ppo_flags import batch_flags, scalar_flags
from cadenza.aht.ego_ppo_learner import (
    build_learner,
    learner_state,
    load_learner_state,
    prepare_rollout,
)
from cadenza.aht.ego_ppo_rollout import RolloutBuffer, RolloutShape, network_input
from cadenza.aht.ego_ppo_seat import EgoSeat, batch_rewards
from cadenza.aht.ego_ppo_setup import assert_partner_is_frozen, ego_spaces, flat_size
from cadenza.aht.types import EventLogger
from cadenza.core.arrays import Float32Array
from cadenza.core.device import deterministic_algorithms, resolve_device
from cadenza.core.errors import InputError, NotReadyError
from cadenza.core.runlog import log_scalars
from cadenza.core.seeding import derive_substream
from cadenza.core.types import Observation, PartnerLike
from cadenza.learn.advantages import compute_gae, normalize_advantages
from cadenza.learn.algorithms.ppo_epochs import PPOOptions, run_ppo_epochs
from cadenza.learn.generator_state import generator_state, set_generator_state
from cadenza.learn.loaded_state import complete_state, require_version
from cadenza.learn.nn.gaussian_actor import actor_mean

__all__ = ["EgoPPOTrainer", "compute_gae", "normalize_advantages"]

#: Stream whose integer seeds the torch generator.
TORCH_STREAM: Final = "training.ego_ppo.torch"
#: Stream of the minibatch permutations.
MINIBATCH_STREAM: Final = "training.ego_ppo.minibatch"
#: Layout version of `EgoPPOTrainer.training_state`.
TRAINING_STATE_VERSION: Final = 1

_FIRST_ENV: Final = np.zeros(1, dtype=np.int64)


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
