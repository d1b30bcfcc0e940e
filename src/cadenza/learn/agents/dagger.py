"""Dataset aggregation (DAgger): imitation of an expert at the states that the learner visits.

    agent = cadenza.DAgger("Pendulum-v1", expert=swing_up, seed=0).learn(20_000)

An expert is a function of observations, or lives in the environments: whatever it remembers, and
sees beyond the learner, then comes back from a checkpoint together with them.

Round r collects states s with a mixture of both, asks the expert for its action a* at each of them,
and fits the policy to all states of all rounds:
    driver:      the expert with probability β_r = d^r, else the policy; drawn for each environment
                 as a round or an episode begins, so that the policy is seen to drift
    continuous:  L = mean (f(x) − a*)²,  a = clip(f(x), −1, 1)
    choices:     L = mean −log softmax(f(x))_{a*},  a = argmax f(x)
    inputs:      x = clip((s − m) / σ, −8, 8), m and σ of round 0
Each fit continues the last one's, instead of beginning anew.
Source:      arXiv:1011.0686, algorithm 3.1; noise on executed actions: arXiv:1703.09327.
Axes:        N = environments, B = batch, R = states so far, O = observation, A = action components,
             K = choices.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, Never, TypeAlias, TypedDict, Unpack, cast

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from cadenza.core.arrays import require_finite, require_shape
from cadenza.core.errors import CheckpointError, InputError
from cadenza.core.seeding import derive_substream
from cadenza.learn.agents.solo import Deployed, SoloAgent, SoloKeywords
from cadenza.learn.env.making import EnvLike
from cadenza.learn.env.stepping import ActionCodec, VectorStep
from cadenza.learn.loaded_state import RandomSource, generator_state, set_generator_state
from cadenza.learn.nn.encoders import is_box, is_image
from cadenza.learn.nn.initialization import default_linear
from cadenza.learn.nn.layers import Decision, EncoderFactory, Layer, with_encoder
from cadenza.learn.settings import Count, FrozenModel, Width, Widths

#: Observations, (N, *shape), or flat rows, (N, O), if they are no arrays, to actions as the
#: environment takes them, (N, *shape).
Expert: TypeAlias = Callable[[NDArray[Any]], NDArray[Any]]
#: What environments without an expert of their own are asked for.
EXPERT_ACTION = "expert_action"
#: Bound of a scaled input, in standard deviations of round 0.
CLIP: Final = 8.0
#: Smallest spread of an input, in its unit: one that stood still in round 0 is not blown up.
MIN_SPREAD: Final = 1e-4
#: Adam's step size within a fit: from this share of the updates on, this share of the first one.
RATES: Final = ((0.0, 1.0), (0.7, 0.3), (0.9, 0.1))


class DAggerConfig(FrozenModel):
    """Imitation of an expert with dataset aggregation.

    Attributes:
        round_length: Steps per environment between fits, >= 1.
        updates: Updates per fit, >= 1.
        batch_size: States per update, >= 1.
        learning_rate: Adam's first step size of a fit, > 0; later ones are shares of it.
        hidden_sizes: Widths of the hidden layers, at least one.
        expert_decay: Probability that the expert drives an environment in round r, r-th power of
            it, in [0, 1]; the expert drives round 0.
        action_noise: Deviation of the noise on executed actions in [-1, 1], or the probability that
            a choice is replaced by a random one, in [0, 1].
        noise_share: Share of the steps with such noise, in [0, 1].
    """

    round_length: Count = Field(default=100, ge=1)
    updates: Count = Field(default=300, ge=1)
    batch_size: Count = Field(default=512, ge=1)
    learning_rate: float = Field(default=1e-3, gt=0.0)
    hidden_sizes: tuple[Width, ...] = Field(default=(128, 128), min_length=1)
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
    learning_rate: float
    hidden_sizes: Widths
    expert_decay: float
    action_noise: float
    noise_share: float


def imitation_loss(output: Tensor, actions: Tensor) -> Tensor:
    """Return L, a scalar.

    Args:
        output: f(x), (B, A), or logits, (B, K).
        actions: The expert's, (B, A) in [−1, 1], or its choices, (B,) int64.
    """
    if actions.is_floating_point():
        return (output - actions).square().mean()
    return nn.functional.cross_entropy(output, actions)


def rate_share(done: float) -> float:
    """Return Adam's step size at the share ``done`` of a fit, as a share of the first one."""
    return next(share for begin, share in reversed(RATES) if done >= begin)


class InputScale(nn.Module):
    """x of the module's header; the identity until `fit`."""

    mean: Tensor
    spread: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("spread", torch.ones(width))

    def fit(self, observations: Tensor) -> None:
        """Take m and σ of observations, (R, O)."""
        exact = observations.double()
        self.mean.copy_(exact.mean(dim=0))
        self.spread.copy_(exact.std(dim=0, correction=0).clamp(min=MIN_SPREAD))

    def forward(self, obs: Tensor) -> Tensor:
        """Return x, (B, O)."""
        return ((obs - self.mean) / self.spread).clamp(-CLIP, CLIP)

    def portable(self) -> Sequence[Layer]:
        """Return the layer of a policy file."""
        tensors = {"mean": self.mean, "spread": self.spread}
        return [Layer("standardise", {"limit": CLIP}, tensors)]


class Demonstrations:
    """Every state so far with the expert's action at it."""

    def __init__(self, width: int, components: int | None, dtype: torch.dtype) -> None:
        shape = () if components is None else (components,)
        kind = torch.int64 if components is None else torch.float32
        self._observations = torch.empty((0, width), dtype=dtype)
        self._actions = torch.empty((0, *shape), dtype=kind)
        self._size = 0

    def __len__(self) -> int:
        """Return R."""
        return self._size

    @property
    def observations(self) -> Tensor:
        """All states, (R, O)."""
        return self._observations[: self._size]

    @property
    def actions(self) -> Tensor:
        """The expert's actions, (R, A), or its choices, (R,)."""
        return self._actions[: self._size]

    def add(self, observations: NDArray[Any], actions: NDArray[Any]) -> None:
        """Add rows, (N, O) and (N, A) or (N,)."""
        end = self._size + len(observations)
        if end > len(self._observations):  # twice the room, so that a row is moved about once
            self._observations = _grown(self._observations, 2 * end)
            self._actions = _grown(self._actions, 2 * end)
        self._observations[self._size : end] = torch.from_numpy(observations)  # pyright: ignore[reportUnknownMemberType] # untyped in torch
        self._actions[self._size : end] = torch.from_numpy(actions)  # pyright: ignore[reportUnknownMemberType] # untyped in torch
        self._size = end

    def sample(self, count: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Return ``count`` rows, drawn with replacement."""
        rows = torch.randint(self._size, (count,), generator=generator)
        return {"obs": self._observations[rows], "actions": self._actions[rows]}

    def state_dict(self) -> dict[str, Any]:
        """Return both columns; copies."""
        return {"obs": self.observations.clone(), "actions": self.actions.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over stored rows.

        Raises:
            CheckpointError: They are of other widths.
        """
        for mine, theirs in ((self._observations, state["obs"]), (self._actions, state["actions"])):
            if (mine.shape[1:], mine.dtype) != (theirs.shape[1:], theirs.dtype):
                raise CheckpointError(
                    f"DAgger: expected rows of {tuple(mine.shape[1:])} {mine.dtype}, got "
                    f"{tuple(theirs.shape[1:])} {theirs.dtype}."
                )
        self._observations, self._actions = state["obs"].clone(), state["actions"].clone()
        self._size = len(self._observations)


class DAggerLearner:
    """The policy, all demonstrations, and everything that is drawn.

    Args:
        seed: Root of the streams ``learn.dagger.torch`` and ``learn.dagger.acting``.
        observation_dtype: Element type of the observations that are kept.
    """

    def __init__(
        self,
        config: DAggerConfig,
        *,
        observation_dim: int,
        choices: int | None = None,
        action_dim: int | None = None,
        seed: int = 0,
        encoder: EncoderFactory | None = None,
        observation_dtype: torch.dtype = torch.float32,
    ) -> None:
        self.config = config
        torch_seed = derive_substream("learn.dagger.torch", root_seed=seed).integer_seed()
        self._generator = torch.Generator().manual_seed(torch_seed)
        self.acting: np.random.Generator = derive_substream(
            "learn.dagger.acting", root_seed=seed
        ).default_rng()
        self._choices = choices
        outputs = choices if action_dim is None else action_dim
        layers, features = with_encoder(
            encoder,
            observation_dim,
            lambda width: imitation_layers(
                width, config.hidden_sizes, outputs or 0, self._generator
            ),
        )
        self._scale = InputScale(observation_dim)
        self._network = nn.Sequential(*(features or [self._scale]), layers)
        bound = [] if action_dim is None else [nn.Hardtanh(-1.0, 1.0)]
        self.greedy: nn.Sequential = nn.Sequential(self._network, Decision(self._decide, *bound))
        self._optimizer: Any = torch.optim.Adam(self._network.parameters(), lr=config.learning_rate)
        self.demonstrations: Demonstrations = Demonstrations(
            observation_dim, action_dim, observation_dtype
        )
        self.rounds: int = 0

    @torch.no_grad()
    def act(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Return greedy decisions, (N, A) or (N,), for observations, (N, O)."""
        return self.greedy(torch.from_numpy(rows.astype(np.float32))).numpy()  # pyright: ignore[reportUnknownMemberType] # untyped in torch

    def disturbed(self, decisions: NDArray[Any]) -> NDArray[Any]:
        """Return decisions with the noise of the settings, those of some rows as they are."""
        config, rng = self.config, self.acting
        noisy = rng.random(len(decisions)) < config.noise_share
        if self._choices is None:
            noise = config.action_noise * rng.standard_normal(decisions.shape)
            return np.clip(decisions + noise * noisy[:, None], -1.0, 1.0).astype(np.float32)
        replaced = noisy & (rng.random(len(decisions)) < config.action_noise)
        return np.where(replaced, rng.integers(self._choices, size=len(decisions)), decisions)

    def draw_experts(self, rows: int) -> NDArray[np.bool_]:
        """Return for each of ``rows`` environments whether the expert drives it."""
        return self.acting.random(rows) < self.config.expert_share(self.rounds)

    def end_round(self) -> None:
        """Note that a round is collected and will be learned from."""
        if self.rounds == 0:
            self._scale.fit(self.demonstrations.observations)
        self.rounds += 1

    def sample(self) -> dict[str, Tensor]:
        """Return a batch of all demonstrations."""
        return self.demonstrations.sample(self.config.batch_size, self._generator)

    def update(self, batch: Mapping[str, Tensor], *, done: float) -> dict[str, float]:
        """Do one update, at the share ``done`` of a fit; return figures of it by name."""
        rate = self.config.learning_rate * rate_share(done)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        loss = imitation_loss(self._network(batch["obs"].float()), batch["actions"])
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # pyright: ignore[reportUnknownMemberType] # untyped in torch
        self._optimizer.step()
        return {
            "loss": float(loss.detach()),
            "learning_rate": rate,
            "demonstrations": float(len(self.demonstrations)),
        }

    def state_dict(self) -> dict[str, Any]:
        """Return everything the future depends on, demonstrations excepted."""
        return {
            "network": self._network.state_dict(),
            "scale": self._scale.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "generator": self._generator.get_state(),
            "acting": generator_state(self.acting),
            "rounds": self.rounds,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        self._network.load_state_dict(state["network"])
        self._scale.load_state_dict(state["scale"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._generator.set_state(state["generator"])
        set_generator_state(self.acting, state["acting"])
        self.rounds = int(state["rounds"])

    def _decide(self, output: Tensor) -> Tensor:
        return output.clamp(-1.0, 1.0) if self._choices is None else output.argmax(dim=-1)


def imitation_layers(
    width: int, hidden_sizes: Sequence[int], outputs: int, generator: torch.Generator
) -> nn.Sequential:
    """Return linear layers with layer norm and SiLU in between."""
    layers: list[nn.Module] = []
    widths = [width, *hidden_sizes]
    for inputs, units in pairwise(widths):
        layers += [default_linear(inputs, units, generator), nn.LayerNorm(units), nn.SiLU()]
    return nn.Sequential(*layers, default_linear(widths[-1], outputs, generator))


def _grown(column: Tensor, rows: int) -> Tensor:
    """Return a column of ``rows`` rows that begins as ``column``."""
    larger = column.new_empty((rows, *column.shape[1:]))
    larger[: len(column)] = column
    return larger


class _DAggerKeywords(SoloKeywords, DAggerSettings, total=False): ...


class DAgger(SoloAgent[DAggerConfig]):
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
        space, count = self.envs.space, self.envs.num_envs
        keeps_bytes = is_image(space) and space.dtype == np.uint8
        self._port = ActionCodec(self.envs.action_space, owner=self.name, unit=True)
        self.learner: DAggerLearner = DAggerLearner(
            self.config,
            observation_dim=spaces.flatdim(space),
            choices=self._port.choices,
            action_dim=self._port.components,
            seed=self.seed,
            encoder=self._encoder,
            observation_dtype=torch.uint8 if keeps_bytes else torch.float32,
        )
        self._begin_episodes()
        self._driven: NDArray[np.bool_] = np.ones(count, dtype=np.bool_)  # by the expert
        self._ticks = 0  # steps of this round
        self._due = 0  # updates that are left of this fit

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
        return self.learner.sample()

    @property
    def batch_rows(self) -> int:
        """Rows of a batch."""
        return self.config.batch_size

    def step(self) -> VectorStep:
        """Take a step in every environment, and note what the expert would do in each."""
        learner = self.learner
        if self._rows is None:
            seed = derive_substream(f"learn.api.env.{self.steps}", root_seed=self.seed)
            self._rows = self._flat(self._worlds.reset(seed.integer_seed()))
        if self._ticks == 0:
            self._driven = learner.draw_experts(len(self._rows))
        wanted = self._wanted(self._rows)
        own = wanted if self._driven.all() else learner.act(self._rows)
        driven = self._driven.reshape(-1, *(1,) * (wanted.ndim - 1))
        executed = learner.disturbed(np.where(driven, wanted, own))
        step = self._worlds.step(self._port.to_env(executed))
        learner.demonstrations.add(self._rows[step.valid], wanted[step.valid])
        self._rows = self._flat(step.observations)
        self._ticks += 1
        fresh = learner.draw_experts(len(self._rows))
        self._driven = np.where(step.boundaries, fresh, self._driven)
        self._count(step, step.boundaries)
        if self._ticks >= self.config.round_length:
            learner.end_round()
            self._ticks, self._due = 0, self.config.updates
        return step

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
                    f"{self.name}.learn: expected expert=..., a function of observations, or "
                    f"environments with a method {EXPERT_ACTION}(), got neither: {error}."
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

    def _update(self, batch: Mapping[str, Any]) -> Mapping[str, float]:
        done = 1.0 - (self._due + 1) / self.config.updates
        return self.learner.update(batch, done=done)

    def _actions(self, rows: NDArray[Any], *, deterministic: bool) -> NDArray[Any]:
        decided = self.learner.act(rows)
        return self._port.to_env(decided if deterministic else self.learner.disturbed(decided))

    @property
    def _drawing(self) -> RandomSource:
        return self.learner.acting

    def deployed(self) -> nn.Module:
        """Return a module from observations to greedy actions."""
        return Deployed(self.learner.greedy, self._port)

    def _learned_state(self) -> dict[str, Any]:
        return {
            "learner": self.learner.state_dict(),
            "demonstrations": self.learner.demonstrations.state_dict(),
            "driven": torch.tensor(self._driven),
            "progress": [self._ticks, self._due],
            **self._episodes(),
        }

    def _without_memory(self, learned: dict[str, Any]) -> dict[str, Any]:
        return learned | {"demonstrations": None, "rows": None, "progress": [0, 0]}

    def _load_learned_state(self, state: Mapping[str, Any]) -> None:
        self.learner.load_state_dict(state["learner"])
        if state["demonstrations"] is not None:
            self.learner.demonstrations.load_state_dict(state["demonstrations"])
        driven: NDArray[np.bool_] = state["driven"].numpy().copy()
        if len(driven) == self.envs.num_envs:
            self._driven = driven
        self._ticks, self._due = map(int, state["progress"])
        self._load_episodes(state)
