"""Ego learners PPO and MAPPO, beside a frozen partner.

``ppo`` learns from the ego's own state. ``mappo`` judges with a central critic that also sees the
partner's state; the policy acts on its own state alone (arXiv:2103.01955).

Axes:        N = environments, O = own state, S = what the critic sees, A = action.
Randomness:  see `cadenza.learn.algorithms.ppo_agent.PPOAgent`.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cadenza.aht.config import EgoAHTConfig
from cadenza.aht.ego_ppo_setup import assert_partner_is_frozen
from cadenza.aht.ego_seat_rows import SeatOutcome, SeatRows
from cadenza.aht.ego_seat_trainer import EgoSeatTrainer
from cadenza.aht.types import EventLogger
from cadenza.core.arrays import Float32Array, require_finite
from cadenza.core.device import deterministic_algorithms, resolve_device
from cadenza.core.runlog import log_scalars
from cadenza.core.types import Observation, PartnerLike
from cadenza.learn.algorithms.on_policy_buffer import BufferShape, OnPolicyBuffer, Outcome
from cadenza.learn.algorithms.ppo_agent import PPOAgent
from cadenza.learn.nn.mlp_policy import MlpPolicy
from cadenza.learn.running_normalizer import RewardScaler


class EgoOnPolicyTrainer(EgoSeatTrainer):
    """Learns the ego's policy with PPO; build it with `from_config`.

    Args:
        cfg: Checked configuration.
        seat: Reads what the critic sees; the ego's own state comes first.
        device: Where the networks live.
        logger: Receives one event of figures per update.
    """

    LEARNER_KEY = "agent"

    def __init__(
        self,
        *,
        cfg: EgoAHTConfig,
        seat: SeatRows,
        device: torch.device,
        logger: EventLogger | None = None,
    ) -> None:
        self._central = seat.row_dim != seat.observation_dim
        critic_dim = seat.row_dim if self._central else None
        self._squashes = cfg.ppo.squash_actions
        self._agent = PPOAgent(
            cfg.ppo,
            observation_dim=seat.observation_dim,
            action_dim=seat.action_dim,
            critic_dim=critic_dim,
            seed=cfg.seed,
            device=device,
        )
        super().__init__(cfg, seat, self._agent, logger)
        self._on_cpu = device.type == "cpu"
        self._buffer = OnPolicyBuffer(
            BufferShape(
                capacity=cfg.ppo.rollout_length,
                rows=cfg.env.num_envs,
                observation_dim=seat.observation_dim,
                critic_dim=critic_dim,
                action_dim=seat.action_dim,
            )
        )
        self._scaler = (
            RewardScaler(cfg.env.num_envs, cfg.ppo.gamma) if cfg.ppo.normalize_rewards else None
        )

    @classmethod
    def from_config(
        cls,
        cfg: EgoAHTConfig,
        *,
        env: Any,
        partner: PartnerLike,
        ego_uid: str,
        logger: EventLogger | None = None,
    ) -> "EgoOnPolicyTrainer":
        """Return a trainer for the seat ``ego_uid`` of ``env``; this is the `TrainerFactory`.

        Raises:
            ConfigurationError: The partner has a trainable parameter.
            InputError: A space is not flat, or the ego's actions are unbounded.
            DeviceUnavailableError: The configured device is not on this machine.
        """
        assert_partner_is_frozen(partner)
        seat = cls._seat_of(cfg, env, ego_uid, joint=cfg.algo == "mappo")
        return cls(cfg=cfg, seat=seat, device=resolve_device(cfg.runtime.device), logger=logger)

    def act(self, obs: Observation, *, deterministic: bool = False) -> Float32Array:
        """Return the ego's action within its bounds, (A,), or (N, A) for a batched state.

        Args:
            obs: Holds the seats' states.
            deterministic: Return the mean; draws nothing and may come at any time.

        Raises:
            InputError: A state has the wrong shape or is not finite.
            NotReadyError: The rollout is full; `update` comes first.
        """
        own, batched = self._seat.own(obs)
        require_finite("EgoOnPolicyTrainer.act: state", own)
        if deterministic:
            scaled = self._agent.scale(own, learn=False)
            actions = self._agent.act(scaled, deterministic=True)
        else:
            scaled = self._agent.scale(own, learn=True)
            actions = self._agent.act(scaled)
            judged = self._judged(obs, learn=True) if self._central else None
            self._buffer.stage(scaled, actions, judged)
            self._pending = True
        if self._squashes:
            within = self._seat.from_unit(np.tanh(actions))
        else:
            within = np.clip(actions, self._seat.low, self._seat.high)
        return within if batched else within[0]

    def _record(self, step: SeatOutcome) -> None:
        rewards: NDArray[Any] = step.rewards
        if self._scaler is not None:
            rewards = self._scaler.scale(rewards, step.boundaries)
        cut = np.flatnonzero(step.boundaries & ~step.terminated)
        self._buffer.commit(
            Outcome(rewards, step.terminated, step.boundaries),
            self._agent.scale_critic(step.next_rows, learn=False),
            cut,
            self._agent.scale_critic(step.last_rows[cut], learn=False),
        )

    def update(self) -> None:
        """Learn from everything observed since the last update; nothing if there is nothing.

        Raises:
            InputError: Something is not finite.
        """
        self._pending = False
        if self._buffer.length == 0:
            return
        done = self._frames - self._buffer.length * self._buffer.shape.rows
        reproducible = self._on_cpu and self._cfg.runtime.deterministic_torch
        with deterministic_algorithms() if reproducible else nullcontext():
            figures = self._agent.update(self._buffer, progress=done / self._cfg.total_frames)
        if self._logger is not None:
            log_scalars(self._logger, step=self._frames, namespace="train", **figures.as_dict())

    def policy(self) -> MlpPolicy:
        """Return the action without chance as a policy of its own; it shares the weights."""
        moments = self._agent.observation_moments
        weights = [p.detach() for p in self._agent.network.actor.parameters()]
        return MlpPolicy(
            weights=weights,
            activation="tanh",
            output="tanh" if self._squashes else "mean",
            low=torch.tensor(self._seat.low),
            high=torch.tensor(self._seat.high),
            moments=None if moments is None else torch.tensor(np.stack(moments)),
        )

    def load_state_dict(self, payload: Mapping[str, Any]) -> None:
        """Take over networks, optimiser and streams; the rollout in progress is dropped.

        Raises:
            CheckpointError: The checkpoint is of another algorithm or of other sizes.
        """
        super().load_state_dict(payload)
        self._buffer.clear()

    def _progress_state(self) -> dict[str, Any]:
        return {
            "buffer": self._buffer.state_dict(),
            "scaler": None if self._scaler is None else self._scaler.state_dict(),
            "frames": self._frames,
        }

    def _load_progress_state(self, state: Mapping[str, Any]) -> None:
        self._buffer.load_state_dict(state["buffer"])
        if self._scaler is not None:
            self._scaler.load_state_dict(state["scaler"])
        self._frames = int(state["frames"])

    def _judged(self, obs: Observation, *, learn: bool) -> Float32Array:
        return self._agent.scale_critic(self._seat.rows(obs)[0], learn=learn)
