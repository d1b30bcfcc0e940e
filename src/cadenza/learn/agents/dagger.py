"""Dataset aggregation (DAgger): imitation of an expert at the states that the learner visits.

    agent = cadenza.DAgger("Pendulum-v1", expert=swing_up, seed=0).learn(20_000)

An expert is a function of observations, or lives in the environments: whatever it remembers, and
sees beyond the learner, then comes back from a checkpoint together with them.

Round r collects states s with a mixture of both, asks the expert for its action a* at each of them,
and fits the policy to all states of all rounds:
    driver:      the expert with probability β_r = d^r, else the policy; drawn for each environment
                 as a round or an episode begins, so that the policy is seen to drift
    loss:        mse, or that of choices, of `imitation`; inputs are scaled by round 0
Each fit continues the last one's, instead of beginning anew.
Source:      arXiv:1011.0686, algorithm 3.1; noise on executed actions: arXiv:1703.09327.
Axes:        N = environments, B = batch, R = states so far, O = observation, A = action components.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Never, TypeAlias, TypedDict, Unpack, cast

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from cadenza.core.arrays import require_finite, require_shape
from cadenza.core.errors import CheckpointError, InputError, refuse
from cadenza.core.seeding import derive_substream
from cadenza.learn.agents.imitation import ImitationAgent, TorchAdam
from cadenza.learn.agents.solo import SoloKeywords
from cadenza.learn.env.making import EnvLike
from cadenza.learn.env.stepping import VectorStep
from cadenza.learn.loaded_state import generator_state, set_generator_state
from cadenza.learn.nn.encoders import is_box, is_image
from cadenza.learn.settings import (
    Activation,
    Count,
    FrozenModel,
    Rate,
    ScheduleConfig,
    Width,
    Widths,
    value_at,
)

#: Observations, (N, *shape), or flat rows, (N, O), if they are no arrays, to actions as the
#: environment takes them, (N, *shape).
Expert: TypeAlias = Callable[[NDArray[Any]], NDArray[Any]]
#: What environments without an expert of their own are asked for.
EXPERT_ACTION = "expert_action"
#: Adam's step size within a fit: from this share of the updates on, this share of the first one.
RATES: Final = ((0.0, 1.0), (0.7, 0.3), (0.9, 0.1))


class DAggerConfig(FrozenModel):
    """Imitation of an expert with dataset aggregation.

    Attributes:
        round_length: Steps per environment between fits, >= 1.
        updates: Updates per fit, >= 1.
        batch_size: States per update, >= 1.
        learning_rate: Adam's first step size of a fit, > 0, or its schedule; later ones of the fit
            are shares of it.
        hidden_sizes: Widths of the hidden layers, at least one.
        activation: What stands between them.
        expert_decay: Probability that the expert drives an environment in round r, r-th power of
            it, in [0, 1]; the expert drives round 0.
        action_noise: Deviation of the noise on executed actions in [-1, 1], or the probability that
            a choice is replaced by a random one, in [0, 1].
        noise_share: Share of the steps with such noise, in [0, 1].
    """

    round_length: Count = Field(default=100, ge=1)
    updates: Count = Field(default=300, ge=1)
    batch_size: Count = Field(default=512, ge=1)
    learning_rate: Rate = 1e-3
    hidden_sizes: tuple[Width, ...] = Field(default=(128, 128), min_length=1)
    activation: Activation = "silu"
    expert_decay: float = Field(default=0.6, ge=0.0, le=1.0)
    action_noise: float = Field(default=0.05, ge=0.0, le=1.0)
    noise_share: float = Field(default=0.5, ge=0.0, le=1.0)

    def expert_share(self, finished_rounds: int) -> float:
        """Return the probability that the expert drives an environment in the next round."""
        return self.expert_decay**finished_rounds  # 0^0 = 1: the expert drives round 0


class DAggerSettings(TypedDict, total=False):
    """Keywords of `DAggerConfig`."""

    round_length: int
    updates: int
    batch_size: int
    learning_rate: float | ScheduleConfig
    hidden_sizes: Widths
    activation: Activation
    expert_decay: float
    action_noise: float
    noise_share: float


def rate_share(done: float) -> float:
    """Return Adam's step size at the share ``done`` of a fit, as a share of the first one."""
    return next(share for begin, share in reversed(RATES) if done >= begin)


class LabelledStates:
    """Every state so far with the expert's action at it."""

    def __init__(self, width: int, components: int | None, dtype: torch.dtype) -> None:
        shape = (0,) if components is None else (0, components)
        kind = torch.int64 if components is None else torch.float32
        self._columns = [torch.empty((0, width), dtype=dtype), torch.empty(shape, dtype=kind)]
        self._added: list[list[Tensor]] = []

    def __len__(self) -> int:
        """Return R."""
        return len(self.observations)

    @property
    def observations(self) -> Tensor:
        """All states, (R, O)."""
        return self._joined()[0]

    @property
    def actions(self) -> Tensor:
        """The expert's actions, (R, A), or its choices, (R,)."""
        return self._joined()[1]

    def add(self, observations: NDArray[Any], actions: NDArray[Any]) -> None:
        """Add rows, (N, O) and (N, A) or (N,)."""
        pairs = zip((observations, actions), self._columns, strict=True)
        self._added.append([torch.tensor(rows, dtype=column.dtype) for rows, column in pairs])

    def at(self, rows: Tensor) -> dict[str, Tensor]:
        """Return states and actions of some rows."""
        return {"obs": self.observations[rows], "actions": self.actions[rows]}

    def state_dict(self) -> dict[str, Any]:
        """Return both columns."""
        return {"obs": self.observations, "actions": self.actions}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over stored rows.

        Raises:
            CheckpointError: They are of other widths.
        """
        given = [state["obs"], state["actions"]]
        for mine, theirs in zip(self._columns, given, strict=True):
            if (mine.shape[1:], mine.dtype) != (theirs.shape[1:], theirs.dtype):
                refuse(
                    CheckpointError,
                    "DAgger",
                    expected=f"rows of {tuple(mine.shape[1:])} {mine.dtype}",
                    got=f"{tuple(theirs.shape[1:])} {theirs.dtype}",
                )
        self._columns, self._added = given, []

    def _joined(self) -> list[Tensor]:
        """Return both columns with what was added."""
        if self._added:
            self._columns = [torch.cat(c) for c in zip(self._columns, *self._added, strict=True)]
            self._added = []
        return self._columns


class _DAggerKeywords(SoloKeywords, DAggerSettings, total=False): ...


class DAgger(ImitationAgent[DAggerConfig]):
    """Imitation with dataset aggregation, for discrete and bounded continuous actions.

    Args:
        expert: What to imitate. None asks each environment: its ``expert_action()`` returns what an
            expert would do now; a vector environment answers ``call("expert_action")`` with one
            action per environment.
        network: See `SoloAgent`; without one, observations are scaled by the moments of round 0.
    """

    Config = DAggerConfig
    default_envs = 25

    def __init__(
        self,
        env: EnvLike,
        *others: Never,
        expert: Expert | None = None,
        **settings: Unpack[_DAggerKeywords],
    ) -> None:
        self._expert = expert
        super().__init__(env, *others, **settings)

    def _build(self) -> None:
        super()._build()
        space = self.envs.space
        keeps_bytes = is_image(space) and space.dtype == np.uint8
        kind = torch.uint8 if keeps_bytes else torch.float32
        self.demonstrations: LabelledStates = LabelledStates(
            spaces.flatdim(space), self._port.components, kind
        )
        self._driven: NDArray[np.bool_] = np.ones(self.envs.num_envs, dtype=np.bool_)  # by experts
        self._rounds = 0  # that are finished
        self._ticks = 0  # steps of this round
        self._due = 0  # updates that are left of this fit

    def _parts(self) -> dict[str, Any]:
        drawing = derive_substream("learn.dagger.acting", root_seed=self.seed)
        self.acting = drawing.default_rng()
        draws = self._stream("torch")
        return {"weights": draws, "batches": draws}

    def _optimizer(self, weights: Iterable[Tensor]) -> TorchAdam:
        return TorchAdam(value_at(self.config.learning_rate, 0), weights)

    @property
    def due(self) -> int:
        """Updates that are left of this fit."""
        return self._due

    def is_halfway(self) -> bool:
        """Return whether a round has begun."""
        return self._ticks > 0

    def batch(self) -> dict[str, torch.Tensor]:
        """Return a batch of all demonstrations for the update that is due next."""
        self._due -= 1
        return self.demonstrations.at(self.learner.draw_rows(len(self.demonstrations)))

    def step(self) -> VectorStep:
        """Take a step in every environment, and note what the expert would do in each."""
        if self._rows is None:
            seed = derive_substream(f"learn.api.env.{self.steps}", root_seed=self.seed)
            self._rows = self._flat(self._worlds.reset(seed.integer_seed()))
        if self._ticks == 0:
            self._driven = self._draw_experts(len(self._rows))
        wanted = self._wanted(self._rows)
        own = wanted if self._driven.all() else self.learner.act(self._rows)
        driven = self._driven.reshape(-1, *(1,) * (wanted.ndim - 1))
        executed = self._disturbed(np.where(driven, wanted, own))
        step = self._worlds.step(self._port.to_env(executed))
        self.demonstrations.add(self._rows[step.valid], wanted[step.valid])
        self._rows = self._flat(step.observations)
        self._ticks += 1
        fresh = self._draw_experts(len(self._rows))
        self._driven = np.where(step.boundaries, fresh, self._driven)
        self._count(step, step.boundaries)
        if self._ticks >= self.config.round_length:
            if self._rounds == 0:
                self.learner.fit_scale(self.demonstrations.observations)
            self._rounds += 1
            self._ticks, self._due = 0, self.config.updates
        return step

    def _draw_experts(self, rows: int) -> NDArray[np.bool_]:
        """Return for each of ``rows`` environments whether the expert drives it."""
        return self.acting.random(rows) < self.config.expert_share(self._rounds)

    def _disturbed(self, decisions: NDArray[Any]) -> NDArray[Any]:
        """Return decisions with the noise of the settings, those of some rows as they are."""
        config, rng, choices = self.config, self.acting, self._port.choices
        noisy = rng.random(len(decisions)) < config.noise_share
        if choices is None:
            noise = config.action_noise * rng.standard_normal(decisions.shape)
            return np.clip(decisions + noise * noisy[:, None], -1.0, 1.0).astype(np.float32)
        replaced = noisy & (rng.random(len(decisions)) < config.action_noise)
        return np.where(replaced, rng.integers(choices, size=len(decisions)), decisions)

    def _explore(self, rows: NDArray[Any]) -> NDArray[Any]:
        return self._disturbed(self.learner.act(rows))

    def _wanted(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Return what the expert would do, as decisions, (N, A) or (N,)."""
        space, asked = self.envs.space, self._expert
        if asked is not None:
            actions = asked(rows.reshape(-1, *space.shape) if is_box(space) else rows)
        else:
            try:
                actions = cast("Any", self.envs.vector.unwrapped).call(EXPERT_ACTION)
            except AttributeError as error:
                if error.name != "call" and EXPERT_ACTION not in str(error):
                    raise  # the expert's own
                raise InputError(
                    f"{self.name}.learn: expected an expert, got none; pass expert=..., a function "
                    f"of observations, or give the environment a method {EXPERT_ACTION}()."
                ) from error
        actions = np.asarray(actions)
        name = f"{self.name}: the expert's actions"
        require_shape(name, actions, (len(rows), *(self.envs.action_space.shape or ())))
        require_finite(name, actions)
        return self._port.from_env(actions)

    def _flat(self, observations: NDArray[Any]) -> NDArray[Any]:
        rows = observations.reshape(len(observations), -1)
        if rows.dtype == np.uint8:
            return rows
        require_finite(f"{self.name}: observations", rows)
        return rows.astype(np.float32)

    def _update(self, batch: Mapping[str, Any]) -> Mapping[str, Any]:
        done = 1.0 - (self._due + 1) / self.config.updates
        rate = value_at(self.config.learning_rate, self.steps) * rate_share(done)
        self.learner.optimizer.learning_rate = rate
        told = {"learning_rate": rate, "demonstrations": float(len(self.demonstrations))}
        return {**self.learner.update(batch), **told}

    def _learned_state(self) -> dict[str, Any]:
        return {
            "learner": self.learner.state_dict(),
            "acting": generator_state(self.acting),
            "rounds": self._rounds,
            "demonstrations": self.demonstrations.state_dict(),
            "driven": torch.tensor(self._driven),
            "progress": [self._ticks, self._due],
            **self._episodes(),
        }

    def _without_memory(self, learned: dict[str, Any]) -> dict[str, Any]:
        return learned | {"demonstrations": None, "rows": None, "progress": [0, 0]}

    def _load_learned_state(self, state: Mapping[str, Any]) -> None:
        learner = state["learner"]
        state = {**learner, **state}  # where files of earlier versions have the rest
        self.learner.load_state_dict(learner)
        set_generator_state(self.acting, state["acting"])
        self._rounds = int(state["rounds"])
        if state["demonstrations"] is not None:
            self.demonstrations.load_state_dict(state["demonstrations"])
        driven: NDArray[np.bool_] = state["driven"].numpy().copy()
        if len(driven) == self.envs.num_envs:
            self._driven = driven
        self._ticks, self._due = map(int, state["progress"])
        self._load_episodes(state)
