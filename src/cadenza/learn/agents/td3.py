"""Twin delayed deep deterministic policy gradient (TD3).

Equations, with a' = clip(π_t(o') + clip(σ ε, -c, c), -1, 1):
    target  y = r + γ m min(Q1t, Q2t)(a', o')
    policy  a = tanh(f(o)); exploring, clip(a + σ ε, -1, 1)
    critic  mean (Q(a, o) - y)²
    policy  -mean Q1(π(o), o), every ``policy_delay`` updates; the targets move then, too
Source:  arXiv:1802.09477, algorithm 1.
Axes:    B = batch, N = environments, O = observation, A = action.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, Never, Unpack

import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from cadenza.core.arrays import Float32Array
from cadenza.learn.agents.off_policy import TD_ERRORS, OffPolicyLearner, Transitions, td_target
from cadenza.learn.agents.replay import ReplayAgent, ReplayKeywords
from cadenza.learn.agents.sac import critic_loss
from cadenza.learn.agents.updates import Figures
from cadenza.learn.env.making import EnvLike
from cadenza.learn.nn.action_value_mlp import ActionValueMlp
from cadenza.learn.nn.initialization import xavier_uniform_init_
from cadenza.learn.nn.layers import EncoderFactory, apply_layers, mlp
from cadenza.learn.settings import (
    Count,
    CriticConfig,
    CriticSettings,
    OffPolicyConfig,
    OffPolicySettings,
    PrioritizedConfig,
    PrioritizedSettings,
)

#: Gain of the output layer: the first actions are close to zero.
OUTPUT_GAIN: Final = 0.01


class DelayedConfig(OffPolicyConfig, CriticConfig):
    """What TD3 and HATD3 share.

    Attributes:
        policy_delay: Critic updates per update of policies and targets, >= 1.
        target_noise: Deviation of the noise on target actions in [-1, 1], >= 0.
        noise_clip: Bound of that noise, >= 0.
        exploration_noise: Deviation of the noise on collected actions in [-1, 1], >= 0.
    """

    policy_delay: Count = Field(default=2, ge=1)
    target_noise: float = Field(default=0.2, ge=0.0)
    noise_clip: float = Field(default=0.5, ge=0.0)
    exploration_noise: float = Field(default=0.1, ge=0.0)


class DelayedSettings(OffPolicySettings, CriticSettings, total=False):
    """Keywords of `DelayedConfig`."""

    policy_delay: int
    target_noise: float
    noise_clip: float
    exploration_noise: float


class TD3Config(PrioritizedConfig, DelayedConfig):
    """Twin delayed deep deterministic policy gradient."""


class TD3Settings(PrioritizedSettings, DelayedSettings, total=False):
    """Keywords of `TD3Config`."""


def smoothed_actions(actions: Tensor, epsilon: Tensor, std: float, clip: float) -> Tensor:
    """Return ``actions`` with bounded noise, kept in [-1, 1].

    Args:
        actions: Shape (B, A), in [-1, 1].
        epsilon: Standard normal draws, shape (B, A).
        std: Standard deviation of the noise.
        clip: Bound of the noise's absolute value.
    """
    return (actions + (std * epsilon).clamp(-clip, clip)).clamp(-1.0, 1.0)


def exploring_actions(actions: Tensor, epsilon: Tensor, std: float) -> Tensor:
    """Return ``actions`` plus noise of deviation ``std``, kept in [-1, 1]; shapes (B, A)."""
    return (actions + std * epsilon).clamp(-1.0, 1.0)


def policy_loss(values: Tensor) -> Tensor:
    """Return -mean Q1(π(o), o), what a deterministic policy minimises; values are (B, 1)."""
    return -values.mean()


class DeterministicMlpPolicy(nn.Module):
    """Perceptron and a tanh.

    Args:
        observation_dim: O, >= 1.
        action_dim: A, >= 1.
        hidden_dims: Widths of the hidden layers.
        activation: One of `cadenza.learn.nn.layers.ACTIVATIONS`.
        init_generator: Source of the initial weights; None draws from the package's own.

    Raises:
        InputError: A width is below one.
    """

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        hidden_dims: Sequence[int],
        *,
        activation: str = "relu",
        init_generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.mlp: nn.Sequential = mlp(
            observation_dim,
            hidden_dims,
            action_dim,
            activation=activation,
            generator=init_generator,
        )
        xavier_uniform_init_(self.mlp[-1], OUTPUT_GAIN, generator=init_generator)

    def forward(self, obs: Tensor) -> Tensor:
        """Return actions in (-1, 1), shape (B, A), for ``obs``, shape (B, O)."""
        return torch.tanh(apply_layers(self.mlp, obs))

    def portable(self) -> Sequence[nn.Module]:
        """Return the layers of a policy file."""
        return [self.mlp, nn.Tanh()]


class TD3Learner(OffPolicyLearner[TD3Config]):
    """TD3's networks, optimisers and streams ``learn.td3.*``, whose root is ``seed``."""

    TARGETS_BEFORE: ClassVar[Mapping[str, str]] = {"policy": "pi", "q1": "q1", "q2": "q2"}

    def __init__(
        self,
        *,
        observation_dim: int,
        action_dim: int,
        config: TD3Config | None = None,
        seed: int = 0,
        encoder: EncoderFactory | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        config = config or TD3Config()
        super().__init__(
            "td3", observation_dim, action_dim, config, seed=seed, encoder=encoder, device=device
        )
        sizes, activation = config.hidden_sizes, config.activation
        judging = config.critic_sizes or sizes
        plain, self.pi, features = self._encoded(
            lambda width: DeterministicMlpPolicy(
                width, action_dim, sizes, activation=activation, init_generator=self.weights
            )
        )
        self.greedy: nn.Module = nn.Sequential(*features, plain)
        self.q1, self.q2 = (
            self._encoded(
                lambda width: ActionValueMlp(
                    width, action_dim, judging, activation=activation, generator=self.weights
                )
            )[1]
            for _ in range(2)
        )
        networks = {"policy": self.pi, "q1": self.q1, "q2": self.q2}
        targets = {name: copy.deepcopy(network) for name, network in networks.items()}
        self.pi_target, self.q1_target, self.q2_target = targets.values()
        self._own(networks, targets)
        self._critics = self._adam(q1=self.q1, q2=self.q2)
        self._actor = self._adam(policy=self.pi)
        self._run(self._learn, critics=self._critics, actor=self._actor)

    def update(self, batch: Mapping[str, Any]) -> Figures:
        """Do one update of the critics and, when due, of the policy; return figures by name."""
        is_due = (self.updates + 1) % self.config.policy_delay == 0
        noise = self._draw(len(batch["rewards"]))
        figures = self._whole(Transitions.of(batch, self._send, self.normal), noise, is_due)
        if is_due:
            self._follow()
        self.updates += 1
        return figures

    def _learn(self, batch: Transitions, noise: Tensor, is_due: bool) -> Figures:
        states, actions, rewards, next_states, masks, discounts, weights = batch
        config = self.config
        with torch.no_grad(), self._whole.rounding():
            next_actions = smoothed_actions(
                self.pi_target(obs=next_states), noise, config.target_noise, config.noise_clip
            )
            next_q = torch.minimum(
                self.q1_target(next_actions, obs=next_states),
                self.q2_target(next_actions, obs=next_states),
            )
            discount = config.gamma if discounts is None else discounts
            y = td_target(rewards, masks, next_q, discount)
        with self._whole.rounding():
            q1, q2 = self.q1(actions, obs=states), self.q2(actions, obs=states)
            losses = {"q1": critic_loss(q1, y, weights), "q2": critic_loss(q2, y, weights)}
        figures = self._critics.step(**losses) | {
            "q1_prediction": q1.detach().mean(),
            "q2_prediction": q2.detach().mean(),
            "q_target": y.mean(),
        }
        if weights is not None:
            figures[TD_ERRORS] = (q1 - y).detach()[:, 0]
        if is_due:
            with self._whole.rounding():
                loss = policy_loss(self.q1(self.pi(obs=states), obs=states))
            figures |= self._actor.step(policy=loss)
        return figures

    @torch.no_grad()
    def act(self, states: Float32Array, *, frames: int) -> NDArray[Any]:
        """Return actions with noise, in [−1, 1], (N, A)."""
        del frames
        actions = self.pi(obs=self._rows(states))
        noise = self._draw(len(states))
        return exploring_actions(actions, noise, self.config.exploration_noise).cpu().numpy()


class _TD3Keywords(ReplayKeywords, TD3Settings, total=False): ...


class TD3(ReplayAgent[TD3Config]):
    """Twin delayed deep deterministic policy gradient; arXiv:1802.09477, `TD3Config`."""

    Config = TD3Config
    Learner = TD3Learner

    def __init__(self, env: EnvLike, *others: Never, **settings: Unpack[_TD3Keywords]) -> None:
        super().__init__(env, *others, **settings)
