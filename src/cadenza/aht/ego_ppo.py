"""Ego learners on rollouts, beside a frozen partner: PPO with HARL's actor, PPO and MAPPO.

``ego_aht_happo`` is HARL's update to the bit, with one robot. ``ppo`` learns from the ego's own
state, too; ``mappo`` judges with a central critic that also sees the partner's state
(arXiv:2103.01955).

Axes:        N = environments, O = own state, S = what the critic sees, A = action.
Randomness:  for HARL's actor the stream ``training.ego_ppo.torch`` initialises the networks and
             then draws the actions, ``training.ego_ppo.minibatch`` shuffles; otherwise see
             `cadenza.learn.agents.ppo.PPOLearner`.
Limits:      state values are computed for the whole rollout at its end, in one batch: only rounding
             (1e-7) tells them from those of the single steps.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, ClassVar, Final

import numpy as np
import torch
from gymnasium.spaces import Box
from numpy.typing import NDArray

from cadenza.aht.config import EgoAHTConfig
from cadenza.aht.ego_trainer import (
    EgoSeatTrainer,
    SeatRows,
    assert_partner_is_frozen,
    ego_spaces,
)
from cadenza.core.arrays import Float32Array, require_finite
from cadenza.core.device import deterministic_algorithms
from cadenza.core.errors import CheckpointError
from cadenza.core.runlog import EventLogger, log_scalars
from cadenza.core.seeding import derive_substream
from cadenza.core.types import PartnerLike
from cadenza.learn.advantages import compute_gae, normalize_advantages
from cadenza.learn.agents.happo import HAPPOConfig, HAPPOLearner
from cadenza.learn.agents.on_policy_buffer import BufferShape, OnPolicyBuffer, Outcome
from cadenza.learn.agents.ppo import PPOLearner
from cadenza.learn.env.stepping import VectorStep
from cadenza.learn.loaded_state import generator_state, set_generator_state, set_torch_state
from cadenza.learn.nn.gaussian_actor import MAX_STANDARD_DEVIATION, STANDARD_DEVIATION_KEY
from cadenza.learn.nn.layer_kinds import layers_of
from cadenza.learn.nn.portable import Output, PortableNetwork, flat_network

__all__ = ["EgoOnPolicyTrainer", "EgoPPOTrainer", "compute_gae", "normalize_advantages"]

#: Keys of a policy checkpoint with HARL's actor.
CHECKPOINT_KEYS: Final = frozenset({"actor", "actor_optim", "critic", "critic_optim"})


class EgoRolloutTrainer(EgoSeatTrainer):
    """Learns the ego's policy from rollouts and forgets them.

    The ego's own state comes first in what the critic sees. With ``means`` the means of the
    distributions that actions are drawn from are kept.
    """

    def __init__(
        self,
        cfg: EgoAHTConfig,
        seat: SeatRows,
        learner: PPOLearner | HAPPOLearner,
        *,
        device: torch.device,
        logger: EventLogger | None,
        means: bool = False,
    ) -> None:
        super().__init__(cfg, seat, learner, logger)
        self._learner, self._device = learner, device
        self._central = seat.row_dim != seat.observation_dim
        self._buffer = OnPolicyBuffer(
            BufferShape(
                capacity=cfg.rollout_length,
                rows=cfg.env.num_envs,
                observation_dim=seat.observation_dim,
                critic_dim=seat.row_dim if self._central else None,
                action_dim=None if seat.choices else seat.action_dim,
                means=means,
            )
        )

    def _record(self, step: VectorStep) -> None:
        rewards = self._learner.normal.rewards.scale(step.rewards, step.boundaries)
        self._buffer.commit(
            Outcome(rewards, step.terminated, step.boundaries),
            self._scaled(step.observations),
            step.cut,
            self._scaled(step.following[step.cut]) if len(step.cut) else None,
        )

    def update(self) -> None:
        """Learn from everything observed since the last update, then forget it.

        Does nothing when nothing was observed. A drawn action that was not observed is dropped.

        Raises:
            InputError: An observation is not finite, or the step left finite numbers; then the
                learning rate is too high or the rewards are too large.
        """
        self._pending = False
        if self._buffer.length == 0:
            return
        done = self._frames - self._buffer.length * self._buffer.shape.rows
        reproducible = self._device.type == "cpu" and self._cfg.runtime.deterministic_torch
        with deterministic_algorithms() if reproducible else nullcontext():
            figures = self._learner.update(self._buffer, done=done, total=self._cfg.total_frames)
        if self._logger is not None:
            log_scalars(self._logger, step=self._frames, namespace="train", **figures)

    def forget_episodes(self) -> None:
        """Forget the running rollout and episodes."""
        self._buffer.clear()
        self._learner.normal.rewards.forget()

    def load_state_dict(self, payload: Mapping[str, Any]) -> None:
        """Take over networks, optimisers and streams; the rollout in progress is dropped.

        Raises:
            CheckpointError: The checkpoint is of another algorithm or of other sizes.
        """
        super().load_state_dict(payload)
        self._buffer.clear()

    def _progress_state(self) -> dict[str, Any]:
        return {"buffer": self._buffer.state_dict()}

    def _load_progress_state(self, state: Mapping[str, Any]) -> None:
        self._buffer.load_state_dict(state["buffer"])

    def _scaled(self, rows: Float32Array) -> Float32Array:
        """Return ``rows`` as the critic sees them, (N, S); nothing is learned from them."""
        return rows


class EgoPPOTrainer(EgoRolloutTrainer):
    """PPO with HARL's actor; prefer `from_config`, which reads the sizes off the environment.

    The partner is checked to be frozen before anything is allocated, and not kept.

    Raises:
        ConfigurationError: The partner has a trainable parameter.
        InputError: A space is not flat.
    """

    LEARNER_KEY: ClassVar[str] = "learner"
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
        device = device or torch.device("cpu")
        seat = SeatRows(
            "EgoPPOTrainer",
            uids=(ego_uid,),
            state_spaces=[ego_obs_space],
            action_space=ego_act_space,
            needs_bounds=False,
        )
        happo, extras = cfg.happo, cfg.ppo_extras
        settings = HAPPOConfig(
            learning_rate=happo.lr,
            decay_learning_rate=extras.lr_decay,
            gamma=happo.gamma,
            gae_lambda=happo.gae_lambda,
            clip_epsilon=happo.clip_eps,
            epochs=happo.n_epochs,
            batch_size=happo.batch_size,
            hidden_sizes=(happo.hidden_dim, happo.hidden_dim),
            max_action_std=extras.max_action_std,
            critic_max_gradient_norm=extras.critic_max_grad_norm,
            normalize_rewards=extras.normalize_rewards,
        )
        stream = derive_substream("training.ego_ppo.torch", root_seed=cfg.seed)
        self._happo = HAPPOLearner(
            settings,
            observation_dims=[seat.observation_dim],
            action_dims=[seat.action_dim],
            critic_dim=seat.observation_dim,
            generator=torch.Generator().manual_seed(stream.integer_seed()),
            shuffle=derive_substream(
                "training.ego_ppo.minibatch", root_seed=cfg.seed
            ).default_rng(),
            device=device,
            interleaved=True,
            target_kl=extras.target_kl,
        )
        super().__init__(cfg, seat, self._happo, device=device, logger=logger, means=True)

    @classmethod
    def _parts(
        cls, cfg: EgoAHTConfig, env: Any, partner: PartnerLike, ego_uid: str
    ) -> dict[str, Any]:
        observation_space, action_space = ego_spaces(env, ego_uid)
        return {
            "ego_uid": ego_uid,
            "ego_obs_space": observation_space,
            "ego_act_space": action_space,
            "partner": partner,
            "device": cfg.device(),
        }

    def _greedy(self, own: Float32Array) -> Float32Array:
        return self._finite(self._happo.decide(own, deterministic=True)[0])

    def _draw(self, own: Float32Array, rows: Float32Array) -> Float32Array:
        del rows
        actions, means = self._happo.decide(own, deterministic=False)
        self._buffer.stage(own, actions, means=means)
        return self._finite(actions)

    def _finite(self, actions: Float32Array) -> Float32Array:
        require_finite("EgoPPOTrainer.act: actions", actions)
        return actions

    def network(self, **fields: Any) -> PortableNetwork:
        """Return the actor as a policy file holds it, with the spread of its draws."""
        return self._happo.actors[0].network(**fields)

    def state_dict(self) -> dict[str, Any]:
        """Return the policy checkpoint: networks and optimisers, loadable with weights_only.

        A bound of the standard deviation other than HARL's, which no weight shows, is a key of its
        own.
        """
        learner = self._happo
        state: dict[str, Any] = {
            "actor": learner.actors[0].state_dict(),
            "actor_optim": learner.optimizers[0].state_dict(),
            "critic": learner.critic.state_dict(),
            "critic_optim": learner.critic_optimizer.state_dict(),
        }
        bound = learner.actors[0].max_standard_deviation
        if bound != MAX_STANDARD_DEVIATION:
            state[STANDARD_DEVIATION_KEY] = bound
        return state

    def load_state_dict(self, payload: Mapping[str, Any]) -> None:
        """Take over networks and optimisers; the rollout in progress is dropped.

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
        if bound != self._happo.actors[0].max_standard_deviation:
            raise CheckpointError(
                "policy checkpoint: expected a policy whose standard deviation is bounded by "
                f"{self._happo.actors[0].max_standard_deviation}, got {bound}; set "
                f"ppo_extras.max_action_std={bound}."
            )
        try:
            self._happo.load_state_dict(
                {
                    "actors": [payload["actor"]],
                    "actor_optimizers": [payload["actor_optim"]],
                    "critic": payload["critic"],
                    "critic_optimizer": payload["critic_optim"],
                }
            )
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"policy checkpoint: expected the sizes of this configuration: {error}"
            ) from error
        self._pending = False
        self._buffer.clear()

    def _progress_state(self) -> dict[str, Any]:
        return {
            **super()._progress_state(),
            "generator": self._happo.generator.get_state(),
            "minibatch_generator": generator_state(self._happo.shuffle),
        }

    def _load_progress_state(self, state: Mapping[str, Any]) -> None:
        super()._load_progress_state(state)
        set_torch_state(self._happo.generator, state["generator"])
        set_generator_state(self._happo.shuffle, state["minibatch_generator"])


class EgoOnPolicyTrainer(EgoRolloutTrainer):
    """PPO, or MAPPO where the critic sees all seats; build it with `from_config`."""

    LEARNER_KEY: ClassVar[str] = "agent"

    def __init__(
        self,
        *,
        cfg: EgoAHTConfig,
        seat: SeatRows,
        device: torch.device,
        logger: EventLogger | None = None,
    ) -> None:
        self._ppo = PPOLearner(
            cfg.ppo,
            observation_dim=seat.observation_dim,
            choices=seat.choices,
            action_dim=None if seat.choices else seat.action_dim,
            critic_dim=seat.row_dim if seat.row_dim != seat.observation_dim else None,
            seed=cfg.seed,
            device=device,
        )
        super().__init__(cfg, seat, self._ppo, device=device, logger=logger)

    @classmethod
    def _parts(
        cls, cfg: EgoAHTConfig, env: Any, partner: PartnerLike, ego_uid: str
    ) -> dict[str, Any]:
        del partner
        seat = cls._seat_of(cfg, env, ego_uid, joint=cfg.algo == "mappo", discrete=True)
        return {"seat": seat, "device": cfg.device()}

    def _greedy(self, own: Float32Array) -> Float32Array:
        return self._within(self._ppo.act(self._seen(own, learn=False), deterministic=True))

    def _draw(self, own: Float32Array, rows: Float32Array) -> Float32Array:
        scaled = self._seen(own, learn=True)
        actions = self._ppo.act(scaled, deterministic=False)
        judged = self._ppo.scale_critic(rows, learn=True) if self._central else None
        self._buffer.stage(scaled, actions, judged)
        return self._within(actions)

    def _seen(self, own: Float32Array, *, learn: bool) -> Float32Array:
        require_finite("EgoOnPolicyTrainer.act: state", own)
        return self._ppo.scale(own, learn=learn)

    def _within(self, actions: NDArray[Any]) -> Float32Array:
        """Return decisions as actions within the seat's bounds, (N, A)."""
        if self._seat.choices:
            return actions[:, None].astype(np.float32) + self._seat.low
        if self._cfg.ppo.squash_actions:
            return self._seat.from_unit(np.tanh(actions))
        return np.clip(actions, self._seat.low, self._seat.high)

    def network(self, **fields: Any) -> PortableNetwork:
        """Return the policy as a policy file holds it, with the spread of its draws."""
        seat, width = self._seat, self._seat.observation_dim
        if seat.choices:
            output = Output(kind="choice", choices=seat.choice_table())
        else:
            kind, log_std = "tanh" if self._cfg.ppo.squash_actions else "mean", self._ppo.log_std
            output = Output(kind=kind, low=seat.low, high=seat.high, log_std=log_std)
        return flat_network(layers_of(self._ppo.greedy), width, output, **fields)

    def _scaled(self, rows: Float32Array) -> Float32Array:
        return self._ppo.scale_critic(rows, learn=False)
