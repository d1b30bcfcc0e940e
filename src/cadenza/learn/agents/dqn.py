"""Deep Q-learning, on choices or on a grid of continuous actions.

Equation:  y = r + γ m V,  loss = mean ℓ(Q(o)_a - y),  ℓ the square or Huber's loss,
           V = max_a Q'(o')_a (plain) or Q'(o')_{argmax_a Q(o')_a} (double), Q' the target network.
           Exploration is ε-greedy: with probability ε any action, else the best one.
Masks:     all of these are over legal actions only; a next state without any has V = 0.
Sources:   Mnih et al. 2015 (doi:10.1038/nature14236); double: arXiv:1509.06461, eq. 4; soft target
           updates: arXiv:1509.02971; ε-greedy: Sutton & Barto, "Reinforcement Learning", 2nd
           edition, eq. 2.2.
Axes:      B = batch, N = environments, O = observation, A = action components, C = choices,
           M = C columns after an observation, 0 for illegal choices, or none.
Grid:      every component takes one of K evenly spaced values from −1 to 1; a choice is one
           combination.
"""

import copy
import itertools
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Final, Never, Self, Unpack, cast

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor, nn

from cadenza.core.arrays import Float32Array
from cadenza.core.episodes import Episode
from cadenza.core.errors import ConfigurationError, InputError, refuse
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
from cadenza.learn.nn.action_value_mlp import DiscreteQMlp
from cadenza.learn.nn.layer_kinds import layers_of
from cadenza.learn.nn.layers import Decision, EncoderFactory
from cadenza.learn.nn.policy_networks import Masked
from cadenza.learn.nn.portable import Output, PortableNetwork, flat_network
from cadenza.learn.nn.recurrent import NEVER
from cadenza.learn.settings import (
    Count,
    MaskedConfig,
    MaskedSettings,
    PrioritizedConfig,
    PrioritizedSettings,
    refuse_idle_settings,
)

#: Most choices; beyond it a network with one output per choice learns next to nothing.
MAX_CHOICES: Final = 4096


class DQNConfig(PrioritizedConfig, MaskedConfig):
    """Deep Q-learning.

    Attributes:
        action_bins: Values per component of a continuous action, >= 2.
        epsilon_start: First share of random actions, in [0, 1].
        epsilon_end: Last share, in [0, ``epsilon_start``].
        epsilon_frames: Environment steps over which it falls linearly, >= 1.
        double: Let the online network choose the next action.
        huber_delta: Error above which the loss grows linearly, > 0; None squares.
        target_period: Updates between movements of the target network, >= 1; with ``tau`` = 1 the
            classic hard ones.
    """

    action_bins: Count = Field(default=5, ge=2)
    epsilon_start: float = Field(default=1.0, ge=0.0, le=1.0)
    epsilon_end: float = Field(default=0.05, ge=0.0, le=1.0)
    epsilon_frames: Count = Field(default=20_000, ge=1)
    double: bool = True
    huber_delta: float | None = Field(default=1.0, gt=0.0)
    target_period: Count = Field(default=1, ge=1)

    @model_validator(mode="after")
    def _epsilon_falls(self) -> Self:
        if not self.epsilon_end <= self.epsilon_start:
            raise ValueError(
                f"epsilon_end: expected at most epsilon_start ({self.epsilon_start}), got "
                f"{self.epsilon_end}"
            )
        return self

    @model_validator(mode="after")
    def _goals_have_no_masks(self) -> Self:
        if self.action_masks and self.hindsight:
            raise ValueError(f"hindsight: expected 0 beside action_masks, got {self.hindsight}")
        return self

    def epsilon(self, steps: int) -> float:
        """Return the share of random actions after ``steps`` environment steps."""
        share = min(1.0, steps / self.epsilon_frames)
        return self.epsilon_start + share * (self.epsilon_end - self.epsilon_start)


class DQNSettings(PrioritizedSettings, MaskedSettings, total=False):
    """Keywords of `DQNConfig`."""

    action_bins: int
    epsilon_start: float
    epsilon_end: float
    epsilon_frames: int
    double: bool
    huber_delta: float | None
    target_period: int


def next_values(
    target_q: Tensor, online_q: Tensor | None = None, legal: Tensor | None = None
) -> Tensor:
    """Return the value of acting greedily, (B, 1), by ``target_q``, (B, C).

    ``online_q``, of the same shape, chooses the action (double Q-learning); None lets the target
    network choose too. Of ``legal`` actions, bool (B, C), if given; without any the value is 0.
    """
    chooser = target_q if online_q is None else online_q
    if legal is None:
        return target_q.gather(1, chooser.argmax(dim=1, keepdim=True))
    best = chooser.masked_fill(~legal, NEVER).argmax(dim=1, keepdim=True)
    return target_q.gather(1, best).masked_fill(~legal.any(dim=1, keepdim=True), 0.0)


def chosen_values(q_values: Tensor, actions: Tensor) -> Tensor:
    """Return the values (B, 1), out of ``q_values`` (B, C), of the actions with these indices.

    Raises:
        InputError: There is not one action per row.
    """
    if q_values.ndim != 2 or actions.numel() != q_values.shape[0]:
        raise InputError(
            "dqn: expected Q-values (B, A) and one action index per row, got "
            f"{tuple(q_values.shape)} and {tuple(actions.shape)}; the network must return one "
            "value per action, and actions must be stored with shape (1,)."
        )
    return q_values.gather(1, actions.to(torch.int64).reshape(-1, 1))


def regression_loss(
    predicted: Tensor, target: Tensor, *, huber_delta: float | None = None
) -> Tensor:
    """Return the loss of every row, (B, 1): the square, or Huber's loss.

    Above an error of ``huber_delta`` the loss grows linearly; None: the square, without the factor
    1/2 of Huber's parabola.
    """
    if predicted.shape != target.shape:
        raise InputError(
            f"dqn: expected q_target of shape {tuple(predicted.shape)}, got "
            f"{tuple(target.shape)}; give QTarget the rollout length of the memory loader."
        )
    if huber_delta is None:
        return (predicted - target).square()
    return nn.functional.huber_loss(predicted, target, reduction="none", delta=huber_delta)


def epsilon_greedy(
    q_values: Tensor, epsilon: float, generator: torch.Generator, legal: Tensor | None = None
) -> Tensor:
    """Return the best choice of every row, or with probability ε any, (N, 1), for values (N, C).

    Both are ``legal``, bool (N, C), if that is told.
    """
    values = q_values if legal is None else q_values.masked_fill(~legal, NEVER)
    greedy = values.argmax(dim=1, keepdim=True)
    # Both draws are made whatever ε is, so ε does not shift the random stream.
    explores = torch.rand(greedy.shape, generator=generator) < epsilon
    if legal is None:
        drawn = torch.randint(q_values.shape[1], greedy.shape, generator=generator)
    else:
        drawn = any_legal(legal, generator)
    return torch.where(explores.to(greedy.device), drawn.to(greedy.device), greedy)


def any_legal(legal: Tensor, generator: torch.Generator) -> Tensor:
    """Return a uniformly drawn ``legal`` choice of every row, (N, 1), for bool (N, C)."""
    drawn = torch.rand(legal.shape, generator=generator)
    return drawn.masked_fill(~legal.cpu(), -1.0).argmax(dim=1, keepdim=True)


def action_grid(components: int, bins: int) -> Float32Array:
    """Return every combination of ``bins`` values from −1 to 1, (C, A); the last varies fastest.

    Raises:
        ConfigurationError: There are more than 4096.
    """
    if bins**components > MAX_CHOICES:
        raise ConfigurationError(
            f"dqn: expected at most {MAX_CHOICES} combinations of actions, got {bins}^{components}"
            "; lower dqn.action_bins or use sac or td3."
        )
    values = np.linspace(-1.0, 1.0, bins, dtype=np.float32)
    return np.array(list(itertools.product(values, repeat=components)), dtype=np.float32)


class DQNLearner(OffPolicyLearner[DQNConfig]):
    """DQN on ``choices``, (C, A) in [−1, 1], see `action_grid`; streams ``learn.dqn.*``.

    With ``masks`` states are (B, O + C), and end with 0 for illegal choices.
    """

    TARGETS_BEFORE: ClassVar[Mapping[str, str]] = {"q": ""}
    action_dtype: type[np.generic] = np.int64

    def __init__(
        self,
        *,
        observation_dim: int,
        choices: Float32Array,
        masks: bool = False,
        config: DQNConfig | None = None,
        seed: int = 0,
        encoder: EncoderFactory | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        config = config or DQNConfig()
        super().__init__(  # an action is the index of a choice
            "dqn", observation_dim, 1, config, seed=seed, encoder=encoder, device=device
        )
        self._choices, self._masks = choices, len(choices) if masks else 0
        plain, self.q, features = self._encoded(
            lambda width: DiscreteQMlp(
                width,
                len(choices),
                config.hidden_sizes,
                activation=config.activation,
                generator=self.weights,
            )
        )
        self.greedy: nn.Module = nn.Sequential(*features, plain)
        self.q_target = copy.deepcopy(self.q)
        self._own({"q": self.q}, {"q": self.q_target})
        values = Masked(self.greedy, self._masks) if masks else self.greedy
        self.greedy = nn.Sequential(values, Decision(partial(torch.argmax, dim=-1)))
        self._critic = self._adam(q=self.q)
        self._run(self._learn, critic=self._critic)

    def update(self, batch: Mapping[str, Any]) -> Figures:
        """Do one update; return figures of it by name."""
        figures = self._whole(Transitions.of(batch, self._send, self.normal))
        self.updates += 1
        if self.updates % self.config.target_period == 0:
            self._follow()
        return figures

    def _learn(self, batch: Transitions) -> Figures:
        states, actions, rewards, next_states, masks, discounts, weights = batch
        (states, _), (next_states, legal) = self._parted(states), self._parted(next_states)
        with torch.no_grad(), self._whole.rounding():
            online_q = self.q(obs=next_states) if self.config.double else None
            values = next_values(self.q_target(obs=next_states), online_q, legal)
            discount = self.config.gamma if discounts is None else discounts
            y = td_target(rewards, masks, values, discount)
        with self._whole.rounding():
            predicted = chosen_values(self.q(obs=states), actions)
            rows = regression_loss(predicted, y, huber_delta=self.config.huber_delta)
            loss = mean_loss(rows, weights)
        figures = {"q_prediction": predicted.detach().mean(), "q_target": y.mean()}
        if weights is not None:
            figures[TD_ERRORS] = (predicted - y).detach()[:, 0]
        return self._critic.step(q=loss) | figures

    def _parted(self, states: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return observations, (B, O), and which choices are legal, bool (B, C), if masks came."""
        if not self._masks:
            return states, None
        return states[:, : -self._masks], states[:, -self._masks :] != 0

    @torch.no_grad()
    def act(self, states: Float32Array, *, frames: int) -> NDArray[Any]:
        """Return ε-greedy choices, (N, 1) int64."""
        rows, legal = self._parted(self._rows(states))
        epsilon = self.config.epsilon(frames)
        return epsilon_greedy(self.q(obs=rows), epsilon, self.noise, legal).cpu().numpy()

    def random_legal(self, states: Float32Array) -> NDArray[Any]:
        """Return uniformly drawn legal choices, (N, 1) int64, for states (N, O + C)."""
        return any_legal(torch.tensor(states[:, -self._masks :] != 0), self.noise).numpy()

    def random_actions(self, rows: int) -> NDArray[Any]:
        """Return uniformly drawn choices, (``rows``, 1) int64."""
        return torch.randint(len(self._choices), (rows, 1), generator=self.noise).numpy()

    def to_unit(self, stored: NDArray[Any]) -> Float32Array:
        """Return the chosen actions in [−1, 1], (N, A)."""
        return self._choices[stored[:, 0]]

    def policy(self, low: Float32Array, high: Float32Array, **fields: Any) -> PortableNetwork:
        """Return the choice of highest value, scaled."""
        choices = low + (self._choices + 1.0) * 0.5 * (high - low)
        output = Output(kind="choice", choices=choices.astype(np.float32))
        return flat_network(layers_of(self.greedy), self.observation_dim, output, **fields)


class _DQNKeywords(ReplayKeywords, DQNSettings, total=False): ...


class DQN(ReplayAgent[DQNConfig]):
    """Deep Q-learning, on choices or a grid of actions; arXiv:1509.06461, `DQNConfig`."""

    Config = DQNConfig

    def __init__(self, env: EnvLike, *others: Never, **settings: Unpack[_DQNKeywords]) -> None:
        super().__init__(env, *others, **settings)

    @property
    def _is_masked(self) -> bool:
        return self.config.action_masks

    def _learner(self, width: int, encoder: EncoderFactory | None) -> DQNLearner:
        if self.envs.masks and not isinstance(self.envs.action_space, spaces.Discrete):
            refuse(
                ConfigurationError,
                f"{self.name}: action_masks",
                expected="one choice (Discrete)",
                got=str(self.envs.action_space),
                do="use PPO, which makes each of several by itself",
            )
        if self.envs.masks and self._source.is_told:
            refuse(
                ConfigurationError,
                f"{self.name}: demonstrations",
                expected="none beside action_masks, because recordings hold no masks",
                got=str(self._source.given),
            )
        if self._port.choices is None:
            self._choices = action_grid(self._components(), self.config.action_bins)
        else:
            refuse_idle_settings(
                self.config, "action_bins", where="for actions that are choices", owner=self.name
            )
            self._choices = np.arange(self._port.choices, dtype=np.float32)[:, None]
        return DQNLearner(
            observation_dim=width,
            choices=self._choices,
            masks=bool(self.envs.masks),
            config=self.config,
            encoder=encoder,
            seed=self.seed,
            device=self.device,
        )

    def _random_actions(self, rows: NDArray[Any]) -> NDArray[Any]:
        masked = cast("DQNLearner", self.learner)
        return masked.random_legal(rows) if self.envs.masks else super()._random_actions(rows)

    def _stored(self, episode: Episode) -> NDArray[Any]:
        if self._port.choices is None:
            raise InputError(
                f"{self.name}: expected demonstrations of choices, got {self.envs.action_space}, "
                "of which it knows a grid alone; use SAC or TD3."
            )
        return super()._stored(episode)

    def _greedy(self) -> nn.Module:
        best = self._policy
        if self._port.choices is not None:
            return best
        return nn.Sequential(best, _Grid(self._choices).to(self.device))

    def _output(self) -> Output:
        if self._port.choices is not None:
            return super()._output()
        return Output(kind="choice", choices=self._port.to_env(self._choices))


class _Grid(nn.Module):
    """Numbers of choices, (B,), to their actions in [−1, 1], (B, A)."""

    def __init__(self, choices: NDArray[np.float32]) -> None:
        super().__init__()
        self.register_buffer("choices", torch.tensor(choices), persistent=False)

    def forward(self, best: Tensor) -> Tensor:
        """Return actions, (B, A)."""
        return self.get_buffer("choices")[best]
