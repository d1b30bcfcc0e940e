"""UPD: an ego that trains beside noisy copies of itself, those it can learn most from.

A training partner z = (ε, b, a) acts by a frozen copy of the ego, a copies old, with probability
1 − ε in each step, else at random with the bias b:
    choices    drawn from b ~ Dirichlet(α, ..., α)
    numbers    clip(m + h (b + σ x_t)), x_t = ρ x_{t−1} + √(1 − ρ²) ξ_t, b uniform in [−1, 1]^A,
               m and h middle and half width of the box
A partner is drawn per episode, with the chance (1 − u) s_z / Σ s + u / Z, where s_z is the variance
of its last n scores; of successes that is p (1 − p). Below n = 8 it counts as the largest of the
known ones: the variance of few returns rewards noise.
Source:      arXiv:2508.06336 (learnability of biased partners); the uniform share u, bias and
             correlation of numbers are ours.
Axes:        Z = candidates, N = environments, A = action, n = remembered scores.
Randomness:  candidates from the stream ``learn.upd.candidates``; draws as in `self_play`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Never, Unpack, cast

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from pydantic import Field

from cadenza.core.arrays import Float32Array, FloatArray
from cadenza.core.checks import is_scalable
from cadenza.core.errors import ConfigurationError, refuse
from cadenza.core.seeding import derive_substream
from cadenza.learn.agents.self_play import (
    CopyPlayer,
    SelfPlayConfig,
    SelfPlayPPO,
    SelfPlaySettings,
)
from cadenza.learn.agents.solo import SoloKeywords
from cadenza.learn.env.making import EnvLike
from cadenza.learn.sampling import PartnerSampler
from cadenza.learn.settings import Count, SamplerConfig, refuse_idle_settings

#: Scores that a candidate needs for a variance of its own.
LEAST_SCORES: Final = 8


class UPDConfig(SelfPlayConfig):
    """UPD.

    Attributes:
        candidates: Z, >= 1; their ε are spread evenly over [0, 1].
        copies: Of the ego, that candidates play, >= 1.
        copy_every: Updates between two copies, >= 1.
        uniform_share: u, in [0, 1].
        remembered_scores: n, >= 8.
        concentration: α of choices, > 0; the smaller, the stronger the bias.
        noise: σ of numbers, >= 0.
        noise_memory: ρ of numbers, in [0, 1).
    """

    candidates: Count = Field(default=64, ge=1)
    copies: Count = Field(default=4, ge=1)
    copy_every: Count = Field(default=10, ge=1)
    uniform_share: float = Field(default=0.2, ge=0.0, le=1.0)
    remembered_scores: Count = Field(default=32, ge=LEAST_SCORES)
    concentration: float = Field(default=0.5, gt=0.0)
    noise: float = Field(default=0.3, ge=0.0)
    noise_memory: float = Field(default=0.9, ge=0.0, lt=1.0)


class UPDSettings(SelfPlaySettings, total=False):
    """Keywords of `UPDConfig`."""

    candidates: int
    copies: int
    copy_every: int
    uniform_share: float
    remembered_scores: int
    concentration: float
    noise: float
    noise_memory: float


class BiasedCopies(CopyPlayer):
    """Plays every episode by one candidate.

    Attributes:
        epsilon: ε, (Z,).
        bias: b, (Z, choices) or (Z, A).
        ages: a, (Z,).
        chosen: Who plays each row, (N,).
        sampler: Draws them.
    """

    def __init__(
        self, config: UPDConfig, rows: int, space: Any, *, seed: int, draws: np.random.Generator
    ) -> None:
        super().__init__(rows, keep=config.copies, draws=draws)
        self._config, self._space, count = config, space, config.candidates
        self._chooses = isinstance(space, spaces.Discrete)
        made = derive_substream("learn.upd.candidates", root_seed=seed).default_rng()
        self.epsilon: FloatArray = made.permutation((np.arange(count) + 0.5) / count)
        self.ages: NDArray[np.int64] = made.integers(config.copies, size=count)
        if self._chooses:
            choices = np.full(int(space.n), config.concentration)
            self.bias: FloatArray = made.dirichlet(choices, size=count)
        else:
            self.bias = made.uniform(-1.0, 1.0, (count, space.shape[0]))
            self._noise: FloatArray = np.zeros((rows, space.shape[0]))
        self.chosen: NDArray[np.int64] = np.zeros(rows, np.int64)
        self.sampler: PartnerSampler = PartnerSampler(
            count,
            SamplerConfig(kind="learnability"),
            window=config.remembered_scores,
            least=LEAST_SCORES,
            uniform_share=config.uniform_share,
        )

    def begin(self, rows: Sequence[int], episodes: Sequence[int]) -> None:
        """Draw the candidates of new episodes."""
        self.chosen[rows] = [self.sampler.draw(self.draws) for _ in rows]
        if not self._chooses:
            self._noise[rows] = self.draws.standard_normal((len(rows), self._noise.shape[1]))
        super().begin(rows, episodes)

    def _age(self, row: int) -> int:
        return int(self.ages[self.chosen[row]])

    def act(self, states: NDArray[Any]) -> Float32Array:
        """Return what copies draw, and biased random actions in their place."""
        actions, count = super().act(states), len(self.chosen)
        wild = self.draws.random(count) < self.epsilon[self.chosen]
        actions[wild] = self._random()[wild]
        return actions

    def _random(self) -> Float32Array:
        """Return a random action of every row, (N, A) or (N, 1)."""
        bias, config = self.bias[self.chosen], self._config
        if self._chooses:
            ladder = np.cumsum(bias, axis=1)
            drawn = self.draws.random(len(bias))[:, None] * ladder[:, -1:]
            choices = np.minimum((ladder <= drawn).sum(axis=1), bias.shape[1] - 1)
            return (choices[:, None] + int(self._space.start)).astype(np.float32)
        rho, fresh = config.noise_memory, self.draws.standard_normal(self._noise.shape)
        self._noise = rho * self._noise + np.sqrt(1.0 - rho * rho) * fresh
        low, high = self._space.low, self._space.high
        unit = np.clip(bias + config.noise * self._noise, -1.0, 1.0)
        return (low + 0.5 * (unit + 1.0) * (high - low)).astype(np.float32)

    def end(self, rows: Sequence[int], scores: Sequence[float]) -> None:
        """Remember how episodes went beside their candidates."""
        for row, score in zip(rows, scores, strict=True):
            self.sampler.report(int(self.chosen[row]), score)

    def state_dict(self) -> dict[str, Any]:
        """Return copies, scores and draws."""
        return {
            **super().state_dict(),
            "chosen": self.chosen.tolist(),
            **self.sampler.state_dict(),
            **({} if self._chooses else {"noise": self._noise.tolist()}),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        super().load_state_dict(state)
        self.chosen = np.array(state["chosen"], np.int64)
        self.sampler.load_state_dict(state)
        if "noise" in state:
            self._noise = np.array(state["noise"], np.float64).reshape(self._noise.shape)


class _UPDKeywords(SoloKeywords, UPDSettings, total=False): ...


class UPD(SelfPlayPPO):
    """Unsupervised partner design, an ego without a population; arXiv:2508.06336, `UPDConfig`.

    Environments leave the partner's seat open, see `SelfPlayPPO`.

    Raises:
        ConfigurationError: Actions are neither one choice nor numbers with finite bounds.
    """

    Config = UPDConfig

    def __init__(self, env: EnvLike, *others: Never, **settings: Unpack[_UPDKeywords]) -> None:
        super().__init__(env, *others, **settings)

    def _new_partner(self) -> BiasedCopies:
        vector, config = cast("Any", self.envs.vector).unwrapped, cast("UPDConfig", self.config)
        space: Any = getattr(vector, "partner_action_space", self.envs.action_space)
        idle, where = ("noise", "noise_memory"), "for choices"
        kind = cast("Any", type(space))
        if issubclass(kind, spaces.Box) and is_scalable(space.low, space.high):
            idle, where = ("concentration",), "for numbers"
        elif not issubclass(kind, spaces.Discrete):
            expected = "one choice or a Box with finite bounds"
            refuse(ConfigurationError, self.name, expected=expected, got=str(space))
        refuse_idle_settings(config, *idle, where=where, owner=self.name)
        self.copy_every = config.copy_every
        draws, rows = self._partner_draws(), self.envs.num_envs
        return BiasedCopies(config, rows, space, seed=self.seed, draws=draws)
