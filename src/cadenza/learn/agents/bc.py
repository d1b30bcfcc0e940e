"""Behaviour cloning: imitation of recorded actions, one at a time or in chunks.

The policy sees o_t and gives the next k actions, f(x)_0 ... f(x)_{k-1}; the loss compares them to
those that were done, a_t ... a_{t+k-1}. Steps beyond the end of an episode are masked:
    mse         L = mean (f(x)_i − a_{t+i})²       l1   L = mean |f(x)_i − a_{t+i}|
    gaussian    L = mean ½ ((a_{t+i} − μ_i) / σ_i)² + ln σ_i
    choices     L = mean −log softmax(f(x)_i)_{a_{t+i}}
    inputs      x = clip((o − m) / σ, −8, 8), m and σ of the demonstrations
In an episode, the first actions of a chunk are played before the next one is asked for, or a chunk
is asked for at every step and all that speak of this step are averaged, oldest first:
    ensemble    a_t = Σ_i w_i f(x_{t−n+i})_{n−i} / Σ_i w_i,   w_i = exp(−c i),   i = 0 ... n
Source:      chunks and their ensemble: arXiv:2304.13705, section IV (there L1, and c is called m).
Axes:        B = batch, R = steps of all demonstrations, k = steps of a chunk, O = observation,
             A = action components, C = choices.
Departures:  a perceptron instead of ACT's transformer and its latent style.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal, Never, Self, TypedDict, Unpack, cast

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor, nn

from cadenza.core.errors import ConfigurationError
from cadenza.core.seeding import derive_substream
from cadenza.learn.agents.dagger import InputScale, imitation_layers
from cadenza.learn.agents.demonstrations import (
    Demonstrations,
    Source,
    decision_rows,
    observation_rows,
)
from cadenza.learn.agents.judging import Evaluation, evaluate_side_by_side
from cadenza.learn.agents.solo import Deployed, SoloAgent
from cadenza.learn.agents.updates import Adam
from cadenza.learn.env.making import (
    Environments,
    EnvLike,
    SavedWorlds,
    require_numbers,
    space_state,
)
from cadenza.learn.env.stepping import ActionCodec
from cadenza.learn.export import onnx_graph
from cadenza.learn.loaded_state import RandomSource
from cadenza.learn.nn.encoders import AnySpace, Network
from cadenza.learn.nn.initialization import default_linear
from cadenza.learn.nn.layers import Decision, EncoderFactory, Layer, with_encoder
from cadenza.learn.settings import Count, FrozenModel, Width, Widths

#: Updates from one look at the held-out episodes to the next, and most of their steps in one.
LOOK_EVERY: Final = 100
LOOK_ROWS: Final = 4096
#: Bounds of ln σ.
MIN_LOG_STD: Final = -5.0
MAX_LOG_STD: Final = 2.0

Loss = Literal["mse", "l1", "gaussian"]


class BCConfig(FrozenModel):
    """Behaviour cloning.

    Attributes:
        loss: Of continuous actions; choices have the cross-entropy.
        chunk_length: Actions that are predicted at once, >= 1.
        executed_steps: How many of them are played before the next chunk, at most all.
        ensemble: Decay c of the weights in the average of overlapping chunks, >= 0; None for none.
        held_out: Share of the episodes that are not learned from, in [0, 1).
        batch_size: Steps per update, >= 1.
        learning_rate: Adam's step size, > 0.
        hidden_sizes: Widths of the hidden layers, at least one.
        max_gradient_norm: Norm to which gradients are shortened, > 0.
    """

    loss: Loss = "mse"
    chunk_length: Count = Field(default=1, ge=1)
    executed_steps: Count = Field(default=1, ge=1)
    ensemble: float | None = Field(default=None, ge=0.0)
    held_out: float = Field(default=0.1, ge=0.0, lt=1.0)
    batch_size: Count = Field(default=256, ge=1)
    learning_rate: float = Field(default=1e-3, gt=0.0)
    hidden_sizes: tuple[Width, ...] = Field(default=(256, 256), min_length=1)
    max_gradient_norm: float = Field(default=10.0, gt=0.0)

    @model_validator(mode="after")
    def _chunks_can_be_played(self) -> Self:
        if self.executed_steps > self.chunk_length:
            raise ValueError(
                f"executed_steps: expected at most chunk_length ({self.chunk_length}), got "
                f"{self.executed_steps}"
            )
        if self.ensemble is not None and (self.chunk_length == 1 or self.executed_steps > 1):
            raise ValueError(
                "ensemble: expected chunk_length > 1 and executed_steps = 1 beside it, got "
                f"{self.chunk_length} and {self.executed_steps}"
            )
        return self


class BCSettings(TypedDict, total=False):
    """Keywords of `BCConfig`."""

    loss: Loss
    chunk_length: int
    executed_steps: int
    ensemble: float | None
    held_out: float
    batch_size: int
    learning_rate: float
    hidden_sizes: Widths
    max_gradient_norm: float


def masked_mean(errors: Tensor, valid: Tensor) -> Tensor:
    """Return the mean of errors, (B, k), over the steps that are ``valid``, (B, k)."""
    return (errors * valid).sum() / valid.sum()


def squared_errors(predicted: Tensor, actions: Tensor) -> Tensor:
    """Return (f(x) − a)² of every step, (B, k), averaged over the components of (B, k, A)."""
    return (predicted - actions).square().mean(dim=-1)


def absolute_errors(predicted: Tensor, actions: Tensor) -> Tensor:
    """Return |f(x) − a| of every step, (B, k), averaged over the components of (B, k, A)."""
    return (predicted - actions).abs().mean(dim=-1)


def gaussian_errors(mean: Tensor, log_std: Tensor, actions: Tensor) -> Tensor:
    """Return −log density without its constant, (B, k), averaged over components of (B, k, A)."""
    scaled = (actions - mean) * torch.exp(-log_std)
    return (0.5 * scaled.square() + log_std).mean(dim=-1)


def choice_errors(logits: Tensor, choices: Tensor) -> Tensor:
    """Return −log softmax of the choices, (B, k), for logits (B, k, C)."""
    return nn.functional.cross_entropy(logits.transpose(1, 2), choices, reduction="none")


def ensemble_weights(count: int, decay: float) -> NDArray[np.float64]:
    """Return w of the module's header for ``count`` chunks, oldest first; their sum is 1."""
    weights = np.exp(-decay * np.arange(count))
    return weights / weights.sum()


class Chunks:
    """Steps of whole episodes, each with the actions that follow until its episode ends.

    Args:
        observations: By episode, (L, O) each.
        decisions: By episode, (L, A) or (L,) each.
        length: k.
    """

    def __init__(
        self,
        observations: Sequence[NDArray[Any]],
        decisions: Sequence[NDArray[Any]],
        length: int,
    ) -> None:
        lengths = [len(each) for each in decisions]
        self.observations: Tensor = torch.tensor(np.concatenate(observations))
        self._decisions = torch.tensor(np.concatenate(decisions))
        self._ends = torch.tensor(np.repeat(np.cumsum(lengths), lengths))
        self._following = torch.arange(length)

    def __len__(self) -> int:
        """Return R."""
        return len(self._ends)

    def at(self, rows: Tensor) -> dict[str, Tensor]:
        """Return observations (B, O), actions (B, k, ...), and which of these are ``valid``."""
        places, ends = rows[:, None] + self._following, self._ends[rows][:, None]
        return {
            "obs": self.observations[rows],
            "actions": self._decisions[torch.minimum(places, ends - 1)],
            "valid": (places < ends).float(),
        }


class BCLearner:
    """The policy, its optimiser and everything that is drawn.

    Args:
        seed: Root of the streams ``learn.bc.torch``, ``learn.bc.batches`` and ``learn.bc.acting``.
    """

    def __init__(
        self,
        config: BCConfig,
        *,
        observation_dim: int,
        choices: int | None = None,
        action_dim: int | None = None,
        seed: int = 0,
        encoder: EncoderFactory | None = None,
    ) -> None:
        self.config = config
        generators = [
            torch.Generator().manual_seed(
                derive_substream(f"learn.bc.{name}", root_seed=seed).integer_seed()
            )
            for name in ("torch", "batches", "acting")
        ]
        weights, self._batches, self.acting = generators
        self._choices = choices
        self._width = int(choices or action_dim or 0)
        outputs = config.chunk_length * self._width
        layers, features = with_encoder(
            encoder,
            observation_dim,
            lambda width: imitation_layers(width, config.hidden_sizes, outputs, weights),
        )
        self._scale = InputScale(observation_dim)
        *hidden, head = layers
        trunk = nn.Sequential(*(features or [self._scale]), *hidden)
        networks = {"trunk": trunk, "head": head}
        if config.loss == "gaussian" and choices is None:
            networks["spread"] = default_linear(config.hidden_sizes[-1], outputs, weights)
        self._networks = nn.ModuleDict(networks)
        bound = [nn.Hardtanh(-1.0, 1.0)] if choices is None else []
        first = _First(head, self._width)
        self.greedy: nn.Module = nn.Sequential(trunk, first, Decision(self._decide, *bound))
        #: From observations, (N, O), to greedy decisions, (N, k, A) or (N, k).
        self.chunks: nn.Module = nn.Sequential(trunk, head, Decision(self._decide_all))
        self._adam = Adam(
            config.learning_rate, config.max_gradient_norm, policy=self._networks.parameters()
        )
        self.updates: int = 0
        self.held_out_loss: float | None = None

    def fit_scale(self, observations: Tensor) -> None:
        """Scale inputs by the moments of observations, (R, O); an encoder sees them as they are."""
        self._scale.fit(observations.float())

    def sample(self, chunks: Chunks) -> dict[str, Tensor]:
        """Return a batch of chunks, drawn with replacement."""
        size = (self.config.batch_size,)
        return chunks.at(torch.randint(len(chunks), size, generator=self._batches))

    def update(self, batch: Mapping[str, Tensor]) -> dict[str, float]:
        """Do one update; return figures of it by name."""
        figures = self._adam.step(policy=self.loss(batch))
        self.updates += 1
        return {
            "loss": float(figures["policy_loss"]),
            "gradient_norm": float(figures["policy_gradient_norm"]),
        }

    def loss(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return L, a scalar."""
        actions, valid = batch["actions"], batch["valid"]
        features = self._networks["trunk"](batch["obs"].float())
        predicted = self._shaped(self._networks["head"](features))
        if self._choices is not None:
            return masked_mean(choice_errors(predicted, actions), valid)
        if self.config.loss == "gaussian":
            log_std = self._log_std(features)
            return masked_mean(gaussian_errors(predicted, log_std, actions), valid)
        errors = absolute_errors if self.config.loss == "l1" else squared_errors
        return masked_mean(errors(predicted, actions), valid)

    @torch.no_grad()
    def look(self, chunks: Chunks) -> float:
        """Return L of held-out chunks, evenly spaced if there are many."""
        rows = torch.arange(0, len(chunks), -(-len(chunks) // LOOK_ROWS))
        self.held_out_loss = float(self.loss(chunks.at(rows)))
        return self.held_out_loss

    @torch.no_grad()
    def drawn(self, rows: Tensor) -> Tensor:
        """Return first decisions, (N, A) or (N,), drawn from what the policy thinks likely."""
        features = self._networks["trunk"](rows)
        output = self._shaped(self._networks["head"](features))[:, 0]
        if self._choices is not None:
            return torch.multinomial(output.softmax(dim=-1), 1, generator=self.acting)[:, 0]
        if "spread" in self._networks:
            noise = torch.randn(output.shape, generator=self.acting)
            output = output + self._log_std(features)[:, 0].exp() * noise
        return output.clamp(-1.0, 1.0)

    def state_dict(self) -> dict[str, Any]:
        """Return everything the future depends on, demonstrations excepted."""
        return {
            "networks": self._networks.state_dict(),
            "adam": self._adam.state_dict(),
            "batches": self._batches.get_state(),
            "acting": self.acting.get_state(),
            "updates": self.updates,
            "held_out_loss": self.held_out_loss,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        self._networks.load_state_dict(state["networks"])
        self._adam.load_state_dict(state["adam"])
        self._batches.set_state(state["batches"])
        self.acting.set_state(state["acting"])
        self.updates = int(state["updates"])
        found = state["held_out_loss"]
        self.held_out_loss = None if found is None else float(found)

    def _shaped(self, output: Tensor) -> Tensor:
        return output.reshape(-1, self.config.chunk_length, self._width)

    def _log_std(self, features: Tensor) -> Tensor:
        return self._shaped(self._networks["spread"](features)).clamp(MIN_LOG_STD, MAX_LOG_STD)

    def _decide_all(self, output: Tensor) -> Tensor:
        return self._decide(self._shaped(output))

    def _decide(self, output: Tensor) -> Tensor:
        return output.clamp(-1.0, 1.0) if self._choices is None else output.argmax(dim=-1)


class _First(nn.Module):
    """The outputs of a linear layer that speak of the first action, (B, ``width``)."""

    def __init__(self, head: nn.Module, width: int) -> None:
        super().__init__()
        self._head, self._width = head, width

    def forward(self, features: Tensor) -> Tensor:
        """Return the first outputs."""
        return self._head(features)[:, : self._width]

    def portable(self) -> Sequence[Layer]:
        """Return the layer of a policy file."""
        rows = {k: p[: self._width] for k, p in self._head.named_parameters()}
        return [Layer("linear", {}, rows)]


class _Chunked(nn.Module):
    """Observations, (N, *shape), to actions of the environment, (N, ...), and (N, k, ...)."""

    def __init__(self, chunks: nn.Module, codec: ActionCodec) -> None:
        super().__init__()
        self.chunks = chunks
        self._codec = codec

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the first action of each chunk, and the chunk."""
        decided = self.chunks(obs.float().flatten(start_dim=1))
        length = decided.shape[1]
        flat = self._codec.to_env(decided.reshape(-1, *decided.shape[2:]))
        chunk = flat.reshape(-1, length, *flat.shape[1:])
        return chunk[:, 0], chunk


class ChunkPlayer:
    """Plays one episode at a time as the settings say; call `reset` before each."""

    def __init__(self, agent: "BC") -> None:
        self._agent = agent
        self.reset()

    def reset(self) -> None:
        """Begin an episode."""
        self._chunks: list[NDArray[Any]] = []  # oldest first, cut to what lies ahead

    def __call__(self, observation: Any) -> NDArray[Any]:
        """Return the action for the next observation of the episode."""
        config = self._agent.config
        self._chunks = [chunk[1:] for chunk in self._chunks if len(chunk) > 1]
        spent = config.chunk_length - config.executed_steps
        if config.ensemble is not None:
            self._chunks.append(self._agent.predict_chunk(observation))
            weights = ensemble_weights(len(self._chunks), config.ensemble)
            actions = np.stack([chunk[0] for chunk in self._chunks])
            return np.tensordot(weights, actions, axes=1).astype(actions.dtype)
        if not self._chunks or len(self._chunks[0]) <= spent:
            self._chunks = [self._agent.predict_chunk(observation)]
        return self._chunks[0][0]


class _Played(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment with a player of its own, which does not listen to other actions."""

    def __init__(self, env: gymnasium.Env[Any, Any], player: ChunkPlayer) -> None:
        super().__init__(env)
        self._player = player
        self._seen: Any = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        self._player.reset()
        self._seen, info = super().reset(seed=seed, options=options)
        return self._seen, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take the player's step."""
        del action
        outcome = super().step(self._player(self._seen))
        self._seen = outcome[0]
        return outcome


class BC(SoloAgent[BCConfig]):
    """Behaviour cloning, for discrete and bounded continuous actions; `BCConfig`.

    `learn` counts updates: there are no environment steps. `predict` gives the first action of the
    chunk; `evaluate`, and the `player`, play chunks as the settings say.

    Args:
        env: What the demonstrations are of, as for every agent; or, where there is no environment,
            the spaces of observations and actions.
        demonstrations: A path for `read_episodes`, or what it returns. A saved agent knows the
            path, and refuses to go on with other contents.
        network: See `SoloAgent`; without one, observations are scaled by their moments.
    """

    Config = BCConfig

    def __init__(
        self,
        env: EnvLike | tuple[AnySpace, AnySpace],
        *others: Never,
        demonstrations: Demonstrations | None = None,
        seed: int = 0,
        network: Network | None = None,
        **settings: Unpack[BCSettings],
    ) -> None:
        self._source = Source(demonstrations)
        self._chunks: Chunks | None = None
        self._held_out: Chunks | None = None
        super().__init__(env, *others, seed=seed, network=network, **settings)  # pyright: ignore[reportArgumentType] # `_environments` takes spaces, too

    def _environments(self, env: Any, count: int | None) -> Environments:
        if isinstance(env, tuple):
            both = cast("tuple[AnySpace, AnySpace]", env)
            require_numbers(both[0])
            ActionCodec(both[1], owner=self.name, unit=True)
            env = SavedWorlds("", [space_state(space) for space in both])
        return super()._environments(env, count)

    def _build(self) -> None:
        self._port = ActionCodec(self.envs.action_space, owner=self.name, unit=True)
        if self.config.ensemble is not None and self._port.choices is not None:
            raise ConfigurationError(
                f"{self.name}: ensemble: expected None, because choices have no average, got "
                f"{self.config.ensemble}; use executed_steps."
            )
        self.learner: BCLearner = BCLearner(
            self.config,
            observation_dim=spaces.flatdim(self.envs.space),
            choices=self._port.choices,
            action_dim=self._port.components,
            seed=self.seed,
            encoder=self._encoder,
        )
        self._begin_episodes()

    def _open_worlds(self) -> None:
        """Need none: nothing is stepped."""

    def begin(self, steps: int) -> None:
        """Read the demonstrations if they are not read yet, and aim at ``steps`` more updates."""
        if self._chunks is None:
            self._read()
        super().begin(steps)

    def _read(self) -> None:
        """Read the demonstrations; hold some episodes out, drawn by the seed."""
        owner, space = self.name, self.envs.space
        observations: list[NDArray[Any]] = []
        decisions: list[NDArray[Any]] = []
        for episode in self._source.read(owner):
            observations.append(observation_rows(episode, space, owner)[: len(episode)])
            decisions.append(decision_rows(episode, self.envs.action_space, self._port, owner))
        stream = derive_substream("learn.bc.held_out", root_seed=self.seed)
        order = stream.default_rng().permutation(len(decisions)).tolist()
        held = min(round(self.config.held_out * len(order)), len(order) - 1)

        def chunks(numbers: Sequence[int]) -> Chunks:
            chosen = sorted(numbers)
            rows = [observations[i] for i in chosen], [decisions[i] for i in chosen]
            return Chunks(*rows, self.config.chunk_length)

        self._chunks = chunks(order[held:])
        self._held_out = chunks(order[:held]) if held else None
        if self.learner.updates == 0:
            self.learner.fit_scale(self._chunks.observations)

    @property
    def due(self) -> int:
        """Updates that are left."""
        return max(0, self.target_steps - self.steps)

    def step(self) -> None:
        """Do nothing: the demonstrations are all there."""

    def batch(self) -> dict[str, Tensor]:
        """Return a batch of steps and the actions that followed."""
        return self.learner.sample(cast("Chunks", self._chunks))  # `begin` has read them

    @property
    def batch_rows(self) -> int:
        """Steps of a batch."""
        return self.config.batch_size

    def _update(self, batch: Mapping[str, Any]) -> Mapping[str, float]:
        figures = self.learner.update(batch)
        self.steps += 1
        if self._held_out is not None and self.learner.updates % LOOK_EVERY == 0:
            figures["held_out_loss"] = self.learner.look(self._held_out)
        return figures

    @property
    def progress(self) -> str:
        """What the bar of a training shows."""
        loss = self.learner.held_out_loss
        return "" if loss is None else f"held-out loss {loss:.4g}"

    def predict_chunk(self, observation: Any) -> NDArray[Any]:
        """Return the next k actions for one observation, (k, *shape), or for several, (N, k, ...).

        Raises:
            InputError: The observation has another shape, or is not finite.
        """
        rows, is_single = self._observed(observation)
        with torch.no_grad():
            decided = self.learner.chunks(torch.tensor(rows.astype(np.float32))).numpy()
        flat = self._port.to_env(decided.reshape(-1, *decided.shape[2:]))
        actions = flat.reshape(*decided.shape[:2], *flat.shape[1:])
        return actions[0] if is_single else actions

    def export_onnx(self, path: str | Path) -> Path:
        """Write the greedy policy as `SoloAgent.export_onnx` does.

        Where k > 1, the file also gives ``chunk``, (N, k, *shape); ``actions`` begin it.
        """
        if self.config.chunk_length == 1:
            return super().export_onnx(path)
        onnx_graph.require_onnx()
        space = self.envs.layout
        policy = onnx_graph.ObservationParts(_Chunked(self.learner.chunks, self._port), space)
        signature = replace(onnx_graph.observation_signature(space), outputs=("actions", "chunk"))
        return onnx_graph.write_policy(policy, signature, Path(path), self._onnx_metadata())

    def player(self) -> ChunkPlayer:
        """Return what plays whole episodes, one observation after the other."""
        return ChunkPlayer(self)

    def evaluate(
        self,
        episodes: int = 20,
        *,
        env: EnvLike | None = None,
        num_envs: int | None = None,
        seed: int = 0,
        max_episode_steps: int | None = None,
    ) -> Evaluation:
        """Play greedy episodes, chunks as the `player` does; see `SoloAgent.evaluate`.

        Raises:
            InputError: As there; or chunks are to be played in a vector environment.
        """
        limited: Any = {"seed": seed, "max_episode_steps": max_episode_steps}
        if self.config.chunk_length == 1:
            return super().evaluate(episodes, env=env, num_envs=num_envs, **limited)
        worlds = self.envs.several(env, num_envs)
        played = [_Played(world, self.player()) for world in worlds]
        judged = evaluate_side_by_side(
            lambda seen, _: [None] * len(seen), played, episodes, **limited
        )
        for world in worlds:
            if world is not env:
                world.close()
        return judged

    def _actions(self, rows: NDArray[Any], *, deterministic: bool) -> NDArray[Any]:
        states = torch.tensor(rows.astype(np.float32))
        if not deterministic:
            return self._port.to_env(self.learner.drawn(states).numpy())
        with torch.no_grad():
            return self._port.to_env(self.learner.greedy(states).numpy())

    @property
    def _drawing(self) -> RandomSource:
        return self.learner.acting

    def deployed(self) -> nn.Module:
        """Return a module from observations to the first actions of their chunks."""
        return Deployed(self.learner.greedy, self._port)

    def _learned_state(self) -> dict[str, Any]:
        return {
            "learner": self.learner.state_dict(),
            "demonstrations": self._source.state_dict(),
        }

    def _load_learned_state(self, state: Mapping[str, Any]) -> None:
        self.learner.load_state_dict(state["learner"])
        self._source.load_state_dict(state["demonstrations"])
        self._chunks = None  # they are read again, and compared
