"""Soft actor-critic.

Equations:  critic       mean (Q(a, o) - y)²
            target       y = r + γ m V,   V = min(Q1t, Q2t)(a', o') - α log π(a'|o'),   a' ~ π(·|o')
            policy       mean α log π(a|o) - min(Q1, Q2)(a, o),   a ~ π(·|o) reparameterised
            temperature  mean ln α · (-log π(a|o) - H_target), minimised over ln α
Source:     arXiv:1812.05905, equations 5 (critics) and 7 (policy), section 5 in the ln α form of
            its published code (temperature).
Axes:       B = batch, N = environments, O = observation, A = action.
Departures: the temperature learns from the draws that the policy learns from.
"""

import copy
import math
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Never, Self, Unpack

import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor, nn

from cadenza.core.arrays import Float32Array
from cadenza.learn.agents.off_policy import (
    TD_ERRORS,
    OffPolicyLearner,
    Transitions,
    mean_loss,
    td_target,
)
from cadenza.learn.agents.replay import ReplayAgent, ReplayKeywords
from cadenza.learn.agents.updates import Figures
from cadenza.learn.env.making import EnvLike
from cadenza.learn.nn.action_value_mlp import ActionValueMlp
from cadenza.learn.nn.gaussian_policy import MAX_MEAN, GaussianMlpPolicy, squashed_mean
from cadenza.learn.nn.initialization import default_init_
from cadenza.learn.nn.layers import Decision, EncoderFactory, Network
from cadenza.learn.settings import (
    CriticConfig,
    CriticSettings,
    PrioritizedConfig,
    PrioritizedSettings,
    SoloReplayConfig,
    SoloReplaySettings,
)


class SoftConfig(SoloReplayConfig, CriticConfig):
    """What SAC, HLGauss and MBPO share.

    Attributes:
        initial_alpha: First weight of the entropy, > 0.
        max_alpha: Its cap, >= ``initial_alpha``.
        target_entropy: Nats; None is minus the number of action components.
    """

    initial_alpha: float = Field(default=0.2, gt=0.0)
    max_alpha: float = Field(default=10.0, gt=0.0)
    target_entropy: float | None = None

    @model_validator(mode="after")
    def _alpha_below_its_cap(self) -> Self:
        if not self.initial_alpha <= self.max_alpha:
            raise ValueError(
                f"initial_alpha: expected at most max_alpha ({self.max_alpha}), got "
                f"{self.initial_alpha}"
            )
        return self


class SoftSettings(SoloReplaySettings, CriticSettings, total=False):
    """Keywords of `SoftConfig`."""

    initial_alpha: float
    max_alpha: float
    target_entropy: float | None


class SACConfig(SoftConfig, PrioritizedConfig):
    """Soft actor-critic."""


class SACSettings(SoftSettings, PrioritizedSettings, total=False):
    """Keywords of `SACConfig`."""


def soft_values(values: Tensor, log_probabilities: Tensor, alpha: Tensor) -> Tensor:
    """Return V = Q - α log π of drawn actions, (B, 1)."""
    return values - alpha * log_probabilities


def critic_loss(values: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return mean w (Q - y)², equation 5, with w = 1 by default; inputs of shape (B, 1)."""
    return mean_loss(squared_errors(values, targets), weights)


def squared_errors(values: Tensor, targets: Tensor) -> Tensor:
    """Return (Q - y)² of every row, (B, 1)."""
    errors = values - targets
    return errors * errors


def policy_loss(log_probabilities: Tensor, values: Tensor, alpha: Tensor) -> Tensor:
    """Return mean(α log π - Q), what a soft policy minimises; inputs of shape (B, 1)."""
    return torch.mean(alpha * log_probabilities - values)


def temperature_loss(log_probabilities: Tensor, ln_alpha: Tensor, target_entropy: float) -> Tensor:
    """Return mean(ln α · (-log π - H_target)), differentiable in ``ln_alpha`` only."""
    return torch.mean(ln_alpha * (-log_probabilities - target_entropy).detach())


class SACLearner(OffPolicyLearner[SoftConfig]):
    """SAC's networks, optimisers and random streams.

    Linear layers of policy and critics start with torch's default weights, save the policy's heads,
    which start near zero; an encoder keeps its own. The README of `agents` compares other weights.

    ``seed`` is the root of the streams ``learn.sac.*``.
    """

    NAME: ClassVar[str] = "sac"
    Config: ClassVar[type[SoftConfig]] = SACConfig
    TARGETS_BEFORE: ClassVar[Mapping[str, str]] = {"q1": "q1t", "q2": "q2t"}

    def __init__(
        self,
        *,
        observation_dim: int,
        action_dim: int,
        config: SoftConfig | None = None,
        seed: int = 0,
        encoder: EncoderFactory | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        config = config or self.Config()
        super().__init__(
            self.NAME,
            observation_dim,
            action_dim,
            config,
            seed=seed,
            encoder=encoder,
            device=device,
        )
        plain, self.pi, features = self._encoded(
            lambda width: GaussianMlpPolicy(
                width,
                action_dim,
                config.hidden_sizes,
                activation=config.activation,
                generator=self.noise,
                init_generator=self.weights,
            )
        )
        self._with_default_weights(plain.encoder)  # the hidden layers, not the heads
        squash = Decision(squashed_mean, nn.Hardtanh(-MAX_MEAN, MAX_MEAN), nn.Tanh())
        self.greedy: nn.Module = nn.Sequential(*features, plain.encoder, plain.policy.mean, squash)
        self.q1, self.q2 = self._critic(config), self._critic(config)
        self.q1_target, self.q2_target = copy.deepcopy(self.q1), copy.deepcopy(self.q2)
        self._own(
            {"policy": self.pi, "q1": self.q1, "q2": self.q2},
            {"q1": self.q1_target, "q2": self.q2_target},
        )
        first = math.log(config.initial_alpha)
        self.ln_alpha: Tensor = torch.tensor(first, device=self.device, requires_grad=True)
        self._most = math.log(config.max_alpha)
        entropy = config.target_entropy
        self._entropy = -float(action_dim) if entropy is None else entropy
        self._critics = self._adam(q1=self.q1, q2=self.q2)
        self._actor = self._adam(policy=self.pi, alpha=[self.ln_alpha])
        self._run(self._learn, critics=self._critics, actor=self._actor)

    def _critic(self, config: SoftConfig) -> nn.Module:
        """Return a new critic: called with actions and ``obs``, it gives values, (B, 1)."""
        return self._encoded(
            lambda width: self._with_default_weights(
                ActionValueMlp(
                    width,
                    self.action_width,
                    config.critic_sizes or config.hidden_sizes,
                    activation=config.activation,
                    generator=self.weights,
                )
            )
        )[1]

    def _with_default_weights(self, network: Network) -> Network:
        """Return the network with linear layers as torch draws them."""
        network.apply(partial(default_init_, generator=self.weights))
        return network

    def update(self, batch: Mapping[str, Any]) -> Figures:
        """Do one update of critics, policy and temperature; return figures of it by name."""
        rows = len(batch["rewards"])
        noise = self._draw(rows), self._draw(rows)
        figures = self._whole(Transitions.of(batch, self._send, self.normal), *noise)
        self._follow()
        self.updates += 1
        return figures

    def _learn(self, batch: Transitions, next_noise: Tensor, noise: Tensor) -> Figures:
        states, actions, rewards, next_states, masks, discounts, weights = batch
        with torch.no_grad(), self._whole.rounding():
            alpha = self.ln_alpha.exp()
            next_actions, next_log = self.pi(obs=next_states, epsilon=next_noise)
            next_q = torch.minimum(
                self.q1_target(next_actions, obs=next_states),
                self.q2_target(next_actions, obs=next_states),
            )
            values = soft_values(next_q, next_log, alpha)
            discount = self.config.gamma if discounts is None else discounts
            y = td_target(rewards, masks, values, discount)
        with self._whole.rounding():
            losses, figures = self._critic_losses(states, actions, y, weights)
        figures |= self._critics.step(**losses)
        with self._whole.rounding():
            drawn, log = self.pi(obs=states, epsilon=noise)
            q = torch.minimum(self.q1(drawn, obs=states), self.q2(drawn, obs=states))
            losses = {
                "policy": policy_loss(log, q, alpha),
                "alpha": temperature_loss(log, self.ln_alpha, self._entropy),
            }
        figures |= self._actor.step(**losses)
        with torch.no_grad():
            self.ln_alpha.clamp_(max=self._most)
        return figures | {
            "q_target": y.mean(),
            "q_pi_min": q.detach().mean(),
            "entropy": -log.detach().mean(),
            "alpha": alpha,
        }

    def _critic_losses(
        self, states: Tensor, actions: Tensor, y: Tensor, weights: Tensor | None
    ) -> tuple[dict[str, Tensor], Figures]:
        """Return the losses of both critics, and further figures."""
        q1, q2 = self.q1(actions, obs=states), self.q2(actions, obs=states)
        losses = {"q1": critic_loss(q1, y, weights), "q2": critic_loss(q2, y, weights)}
        figures = {"q1_prediction": q1.detach().mean(), "q2_prediction": q2.detach().mean()}
        if weights is not None:
            figures[TD_ERRORS] = (q1 - y).detach()[:, 0]
        return losses, figures

    @torch.no_grad()
    def act(self, states: Float32Array, *, frames: int) -> NDArray[Any]:
        """Return drawn actions in [−1, 1], (N, A)."""
        del frames
        return self.pi(obs=self._rows(states))[0].cpu().numpy()

    def state_dict(self) -> dict[str, Any]:
        """Return everything the future depends on, memory excepted."""
        return {**super().state_dict(), "ln_alpha": self.ln_alpha.detach().clone()}

    def _load(self, state: Mapping[str, Any]) -> None:
        with torch.no_grad():
            self.ln_alpha.copy_(state["ln_alpha"])
        super()._load(state)

    def _from_callbacks(self, callbacks: Mapping[str, Any]) -> dict[str, Any]:
        """Return parts of a state of version 2 as parts of this one."""
        ln_alpha: Tensor = callbacks["alpha"]["network_state_dict"]
        return {**super()._from_callbacks(callbacks), "ln_alpha": ln_alpha}


class _SACKeywords(ReplayKeywords, SACSettings, total=False): ...


class SAC(ReplayAgent[SACConfig]):
    """Soft actor-critic, for continuous actions; arXiv:1812.05905, `SACConfig`."""

    Config = SACConfig
    Learner = SACLearner

    def __init__(self, env: EnvLike, *others: Never, **settings: Unpack[_SACKeywords]) -> None:
        super().__init__(env, *others, **settings)
