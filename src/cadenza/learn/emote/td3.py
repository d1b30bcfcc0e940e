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

from collections.abc import Mapping
from typing import Any, Final, Unpack

import torch
from torch import Tensor, nn, optim

from cadenza.core.checks import require_counts
from cadenza.core.errors import InputError, refuse
from cadenza.learn.agents.td3 import TD3Config, exploring_actions, policy_loss, smoothed_actions
from cadenza.learn.callbacks.loss import LossCallback, LossKeywords
from cadenza.learn.emote.targets import Observations, TargetCallback, TargetKeywords
from cadenza.learn.loaded_state import require_parts
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
            refuse(InputError, "ExploringPolicy", expected="noise_std >= 0", got=noise_std)
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

    Targets that are None are copies of their networks. Arguments not named here are those of
    `TargetCallback`.

    Args:
        pi: Policy, returning actions in [-1, 1].
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
        use_terminal_masking: bool = True,
        target_noise: float = _DEFAULTS.target_noise,
        noise_clip: float = _DEFAULTS.noise_clip,
        policy_delay: int = _DEFAULTS.policy_delay,
        generator: torch.Generator | None = None,
        **others: Unpack[TargetKeywords],
    ) -> None:
        require_counts("QTarget", policy_delay=policy_delay)
        if not (target_noise >= 0.0 and noise_clip >= 0.0):
            got = f"{target_noise} and {noise_clip}"
            refuse(InputError, "QTarget", expected="target_noise and noise_clip >= 0", got=got)
        super().__init__({"pi": (pi, pi_t), "q1": (q1, q1t), "q2": (q2, q2t)}, **others)
        self.use_terminal_masking = use_terminal_masking
        self.target_noise = target_noise
        self.noise_clip = noise_clip
        self.policy_delay = policy_delay
        self.generator: torch.Generator = generator or torch.Generator().manual_seed(0)

    @torch.no_grad()
    def begin_batch(
        self, next_observation: Observations, rewards: Tensor, masks: Tensor
    ) -> dict[str, dict[str, Tensor]]:
        """Write ``q_target``, shape (B, 1), into the data group.

        ``next_observation`` has the state after every rollout, n rows; rewards and masks (0 where a
        step ended its episode for good) are (B, 1).
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

    def _load_rest(self, state: Mapping[str, Any]) -> None:
        super()._load_rest(state)
        require_parts(self.name, state, ("generator",))
        self.generator.set_state(state["generator"].cpu())


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
        name: str = "policy",
        policy_delay: int = _DEFAULTS.policy_delay,
        **others: Unpack[LossKeywords],
    ) -> None:
        require_counts("PolicyLoss", policy_delay=policy_delay)
        super().__init__(name=name, network=pi, optimizer=opt, **others)
        self.policy = pi
        self.q1 = q
        self.policy_delay = policy_delay

    def backward(self, *args: Any, **kwargs: Any) -> None:
        """Step the policy if ``bp_step`` says that it is its turn."""
        if "bp_step" not in kwargs:
            refuse(InputError, self.name, expected="'bp_step' in the state", got=sorted(kwargs))
        if kwargs["bp_step"] % self.policy_delay == 0:
            super().backward(*args, **kwargs)

    def loss(self, observation: Observations) -> Tensor:
        """Return -mean Q1(π(o), o), shape (), for the B rows of ``observation``."""
        actions: Tensor = self.policy(**observation)
        values: Tensor = self.q1(actions, **observation)
        self.log_mean("policy/q_pi", values)
        return policy_loss(values)
