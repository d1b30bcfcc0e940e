"""Twin delayed deep deterministic policy gradient (TD3).

Equations, with a' = clip(π_t(o') + clip(σ ε, -c, c), -1, 1):
    target  y = n-step return of s_r·r, bootstrapped with m min(Q1t, Q2t)(a', o')
    policy  a = tanh(f(o)); exploring, clip(a + σ ε, -1, 1)
    critic  mean (Q(a, o) - y)²                       (`cadenza.learn.emote.sac.QLoss`)
    policy  -mean Q1(π(o), o), every ``policy_delay`` batches; the targets move then, too
Source:  arXiv:1802.09477, algorithm 1.
Axes:    B = n·T rows of a batch: n rollouts of T steps, rollout-major; N = environments,
         O = observation, A = action.
Order:   list the callbacks as `QLoss`, `QLoss`, `PolicyLoss`, `QTarget`.
"""

from typing import Any, Final

import torch
from torch import Tensor, nn, optim

from cadenza.core.errors import CheckpointError, InputError
from cadenza.learn.agents.td3 import TD3Config, exploring_actions, policy_loss, smoothed_actions
from cadenza.learn.callbacks.loss import LossCallback
from cadenza.learn.emote.targets import (
    Observations,
    TargetCallback,
)
from cadenza.learn.nn.layers import NoisyModule

_DEFAULTS: Final = TD3Config()


class ExploringPolicy(NoisyModule):
    """Adds noise of deviation ``noise_std`` to actions in [-1, 1] in training mode.

    The noise is this module's own: its state travels in the state dict.

    Raises:
        InputError: ``noise_std`` is negative.
    """

    def __init__(
        self,
        policy: nn.Module,
        noise_std: float = _DEFAULTS.exploration_noise,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(generator)
        if not noise_std >= 0.0:
            raise InputError(f"ExploringPolicy: expected noise_std >= 0, got {noise_std}.")
        self.policy = policy
        self.noise_std = noise_std

    def forward(self, *observation: Tensor, **named: Tensor) -> Tensor:
        """Return actions, shape (B, A), in [-1, 1]."""
        actions: Tensor = self.policy(*observation, **named)
        if not self.training:
            return actions
        noise = torch.randn(actions.shape, generator=self.generator, device=self.generator.device)
        return exploring_actions(actions, noise.to(actions), self.noise_std)


class QTarget(TargetCallback):
    """Computes ``q_target`` for every batch and lets the target networks follow with a delay.

    Targets that are None are copies of their networks.

    Args:
        pi: Policy, returning actions in [-1, 1].
        roll_length: T, the rollout length of the batch.
        target_noise: Standard deviation of the noise on target actions.
        policy_delay: Batches per update of the targets, >= 1.
        generator: Source of the noise; None makes one seeded 0. Its state is in the state dict.

    Raises:
        InputError: ``policy_delay`` is below one or a noise parameter is negative.
    """

    def __init__(
        self,
        *,
        pi: nn.Module,
        q1: nn.Module,
        q2: nn.Module,
        pi_t: nn.Module | None = None,
        q1t: nn.Module | None = None,
        q2t: nn.Module | None = None,
        gamma: float = _DEFAULTS.gamma,
        reward_scale: float = 1.0,
        target_q_tau: float = _DEFAULTS.tau,
        data_group: str = "default",
        roll_length: int = 1,
        use_terminal_masking: bool = True,
        target_noise: float = _DEFAULTS.target_noise,
        noise_clip: float = _DEFAULTS.noise_clip,
        policy_delay: int = _DEFAULTS.policy_delay,
        generator: torch.Generator | None = None,
    ) -> None:
        _require_delay("QTarget", policy_delay)
        if not (target_noise >= 0.0 and noise_clip >= 0.0):
            raise InputError(
                "QTarget: expected target_noise >= 0 and noise_clip >= 0, got "
                f"{target_noise} and {noise_clip}."
            )
        super().__init__(
            {"pi": (pi, pi_t), "q1": (q1, q1t), "q2": (q2, q2t)},
            gamma=gamma,
            reward_scale=reward_scale,
            target_q_tau=target_q_tau,
            data_group=data_group,
            roll_length=roll_length,
        )
        self.use_terminal_masking = use_terminal_masking
        self.target_noise = target_noise
        self.noise_clip = noise_clip
        self.policy_delay = policy_delay
        self.generator: torch.Generator = (
            torch.Generator().manual_seed(0) if generator is None else generator
        )

    @torch.no_grad()
    def begin_batch(
        self, next_observation: Observations, rewards: Tensor, masks: Tensor
    ) -> dict[str, dict[str, Tensor]]:
        """Write ``q_target``, shape (B, 1), into the data group.

        Args:
            next_observation: State after every rollout (n rows; after every step if T = 1).
            rewards: Shape (B, 1).
            masks: 0 where a step ended its episode for good, shape (B, 1).
        """
        actions: Tensor = self.targets["pi"](**next_observation)
        noise = torch.randn(actions.shape, generator=self.generator, device=self.generator.device)
        actions = smoothed_actions(actions, noise.to(actions), self.target_noise, self.noise_clip)
        values = torch.minimum(
            self.targets["q1"](actions, **next_observation),
            self.targets["q2"](actions, **next_observation),
        )
        masks_or_none = masks if self.use_terminal_masking else None
        return self.written(rewards, values, masks_or_none, min_next_q_target=values)

    def end_batch(self, bp_step: int) -> None:
        """Move the target networks in every ``policy_delay``-th step."""
        if bp_step % self.policy_delay == 0:
            self._target_networks.soft_update(self.tau)

    def state_dict(self) -> dict[str, Any]:
        """Return the logs, the target networks and the state of the noise."""
        return {**super().state_dict(), "generator": self.generator.get_state()}

    def load_state_dict(
        self,
        state_dict: dict[str, Any],
        load_network: bool = True,
        load_optimizer: bool = True,
        load_hparams: bool = True,
    ) -> None:
        """Take over what `state_dict` returned.

        Raises:
            CheckpointError: The target networks or the generator are missing.
        """
        if load_hparams and "generator" not in state_dict:
            raise CheckpointError(
                f"{self.name}.load_state_dict: expected a 'generator', got {sorted(state_dict)}; "
                "load the state of a TD3 QTarget."
            )
        super().load_state_dict(state_dict, load_network, load_optimizer, load_hparams)
        if load_hparams:
            self.generator.set_state(state_dict["generator"].cpu())


class PolicyLoss(LossCallback):
    """Makes the policy choose actions of high value, in every ``policy_delay``-th step.

    The critic ``q`` learns nothing here. Arguments not named are those of `LossCallback`.

    Raises:
        InputError: ``policy_delay`` is below one.
    """

    def __init__(
        self,
        *,
        pi: nn.Module,
        q: nn.Module,
        opt: optim.Optimizer,
        lr_schedule: optim.lr_scheduler.LRScheduler | None = None,
        max_grad_norm: float = _DEFAULTS.max_gradient_norm,
        name: str = "policy",
        data_group: str = "default",
        log_per_param_weights: bool = False,
        log_per_param_grads: bool = False,
        policy_delay: int = _DEFAULTS.policy_delay,
    ) -> None:
        _require_delay("PolicyLoss", policy_delay)
        super().__init__(
            name=name,
            network=pi,
            optimizer=opt,
            lr_schedule=lr_schedule,
            max_grad_norm=max_grad_norm,
            data_group=data_group,
            log_per_param_weights=log_per_param_weights,
            log_per_param_grads=log_per_param_grads,
        )
        self.policy = pi
        self.q1 = q
        self.policy_delay = policy_delay

    def backward(self, *args: Any, **kwargs: Any) -> None:
        """Step the policy if it is its turn.

        Raises:
            InputError: The state has no ``bp_step``.
        """
        if "bp_step" not in kwargs:
            raise InputError(
                f"{self.name}: expected 'bp_step' in the state, got {sorted(kwargs)}; it says "
                "whose turn it is."
            )
        if kwargs["bp_step"] % self.policy_delay == 0:
            super().backward(*args, **kwargs)

    def loss(self, observation: Observations) -> Tensor:
        """Return -mean Q1(π(o), o), shape (), for the B rows of ``observation``."""
        actions: Tensor = self.policy(**observation)
        values: Tensor = self.q1(actions, **observation)
        self.log_mean("policy/q_pi", values)
        return policy_loss(values)


def _require_delay(owner: str, policy_delay: int) -> None:
    if policy_delay < 1:
        raise InputError(f"{owner}: expected policy_delay >= 1, got {policy_delay}.")
