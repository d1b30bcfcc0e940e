"""Behaviour cloning: imitation of recorded actions, one at a time or in chunks.

The policy sees o_t and gives the next k actions, compared to a_t ... a_{t+k-1} by a loss of
`imitation`; steps beyond the end of an episode are masked.

In an episode, the first actions of a chunk are played before the next one is asked for, or a chunk
is asked for at every step and all that speak of this step are averaged, oldest first:
    ensemble    a_t = Σ_i w_i f(x_{t−n+i})_{n−i} / Σ_i w_i,   w_i = exp(−c i),   i = 0 ... n
Source:      chunks and their ensemble: arXiv:2304.13705, section IV (there L1, and c is called m).
Axes:        B = batch, R = steps of all demonstrations, k = steps of a chunk, O = observation,
             A = action components.
Departures:  a perceptron instead of ACT's transformer and its latent style.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Never, Self, TypedDict, Unpack, cast

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor, nn

from cadenza.core.errors import ConfigurationError, refuse
from cadenza.core.seeding import derive_substream
from cadenza.learn.agents.demonstrations import (
    Demonstrations,
    Source,
    decision_rows,
    observation_rows,
)
from cadenza.learn.agents.imitation import ImitationAgent, Loss
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
from cadenza.learn.nn.encoders import AnySpace, Network
from cadenza.learn.settings import (
    Activation,
    Count,
    FrozenModel,
    Rate,
    ScheduleConfig,
    Width,
    Widths,
    refuse_idle_settings,
    value_at,
)

#: Updates from one look at the held-out episodes to the next, and most of their steps in one.
HELD_OUT_EVERY: Final = 100
HELD_OUT_ROWS: Final = 4096


class BCConfig(FrozenModel):
    """Behaviour cloning.

    Attributes:
        loss: Of continuous actions; choices have the cross-entropy.
        chunk_length: Actions that are predicted at once, >= 1.
        executed_steps: How many of them are played before the next chunk, at most all.
        ensemble: Decay c of the weights in the average of overlapping chunks, >= 0; None for none.
        held_out: Share of the episodes that are not learned from, in [0, 1).
        batch_size: Steps per update, >= 1.
        learning_rate: Adam's step size, > 0, or its schedule, by updates.
        hidden_sizes: Widths of the hidden layers, at least one.
        activation: What stands between them.
        max_gradient_norm: Norm to which gradients are shortened, > 0.
    """

    loss: Loss = "mse"
    chunk_length: Count = Field(default=1, ge=1)
    executed_steps: Count = Field(default=1, ge=1)
    ensemble: float | None = Field(default=None, ge=0.0)
    held_out: float = Field(default=0.1, ge=0.0, lt=1.0)
    batch_size: Count = Field(default=256, ge=1)
    learning_rate: Rate = 1e-3
    hidden_sizes: tuple[Width, ...] = Field(default=(256, 256), min_length=1)
    activation: Activation = "silu"
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
    learning_rate: float | ScheduleConfig
    hidden_sizes: Widths
    activation: Activation
    max_gradient_norm: float


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
    """Plays one episode at a time as the settings say; call `reset` before each.

    ``ask`` returns the chunk, (k, *shape), for an observation.
    """

    def __init__(self, config: BCConfig, ask: Callable[[Any], NDArray[Any]]) -> None:
        self._config, self._ask = config, ask
        self.reset()

    def reset(self) -> None:
        """Begin an episode."""
        self._chunks: list[NDArray[Any]] = []  # oldest first, cut to what lies ahead

    def __call__(self, observation: Any) -> NDArray[Any]:
        """Return the action for the next observation of the episode."""
        config = self._config
        self._chunks = [chunk[1:] for chunk in self._chunks if len(chunk) > 1]
        spent = config.chunk_length - config.executed_steps
        if config.ensemble is not None:
            self._chunks.append(self._ask(observation))
            weights = ensemble_weights(len(self._chunks), config.ensemble)
            actions = np.stack([chunk[0] for chunk in self._chunks])
            return np.tensordot(weights, actions, axes=1).astype(actions.dtype)
        if not self._chunks or len(self._chunks[0]) <= spent:
            self._chunks = [self._ask(observation)]
        return self._chunks[0][0]


class BC(ImitationAgent[BCConfig]):
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
    #: Loss of the held-out episodes when it was last looked at.
    held_out_loss: float | None = None

    def __init__(
        self,
        env: EnvLike | tuple[AnySpace, AnySpace],
        *others: Never,
        demonstrations: Demonstrations | None = None,
        seed: int = 0,
        network: Network | None = None,
        device: str = "cpu",
        **settings: Unpack[BCSettings],
    ) -> None:
        self._source = Source(demonstrations)
        self._chunks: Chunks | None = None
        self._held_out: Chunks | None = None
        super().__init__(
            env,  # pyright: ignore[reportArgumentType] # `_environments` takes spaces, too
            *others,
            seed=seed,
            network=network,
            device=device,
            **settings,
        )

    def _environments(self, env: Any, count: int | None) -> Environments:
        if isinstance(env, tuple):
            both = cast("tuple[AnySpace, AnySpace]", env)
            require_numbers(both[0])
            ActionCodec(both[1], owner=self.name, unit=True)
            env = SavedWorlds("", [space_state(space) for space in both])
        return super()._environments(env, count)

    def _parts(self) -> dict[str, Any]:
        config = self.config
        if config.ensemble is not None and self._port.choices is not None:
            refuse(
                ConfigurationError,
                f"{self.name}: ensemble",
                expected="None, because choices have no average",
                got=config.ensemble,
                do="use executed_steps",
            )
        if self._port.choices is not None:
            refuse_idle_settings(
                config, "loss", where="for actions that are choices", owner=self.name
            )
        self.acting = self._stream("acting")
        return {
            "weights": self._stream("torch"),
            "batches": self._stream("batches"),
            "length": config.chunk_length,
            "loss": config.loss,
        }

    def _optimizer(self, weights: Iterable[Tensor]) -> Adam:
        return Adam(
            value_at(self.config.learning_rate, 0), self.config.max_gradient_norm, policy=weights
        )

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
        if self.steps == 0:
            self.learner.fit_scale(self._chunks.observations)

    @property
    def due(self) -> int:
        """Updates that are left."""
        return max(0, self.target_steps - self.steps)

    def step(self) -> None:
        """Do nothing: the demonstrations are all there."""

    def batch(self) -> dict[str, Tensor]:
        """Return a batch of steps and the actions that followed."""
        chunks = cast("Chunks", self._chunks)  # `begin` has read them
        return chunks.at(self.learner.draw_rows(len(chunks)))

    def _update(self, batch: Mapping[str, Any]) -> Mapping[str, Any]:
        rate = value_at(self.config.learning_rate, self.steps)
        self.learner.optimizer.learning_rate = rate
        figures: dict[str, Any] = {**self.learner.update(batch), "learning_rate": rate}
        self.steps += 1
        if self._held_out is not None and self.steps % HELD_OUT_EVERY == 0:
            rows = torch.arange(0, len(self._held_out), -(-len(self._held_out) // HELD_OUT_ROWS))
            with torch.no_grad():
                held_out = self.learner.sent(self._held_out.at(rows))
                self.held_out_loss = float(self.learner.loss(held_out))
            figures["held_out_loss"] = self.held_out_loss
        return figures

    @property
    def progress(self) -> str:
        """What the bar of a training shows."""
        loss = self.held_out_loss
        return "" if loss is None else f"held-out loss {loss:.4g}"

    def predict_chunk(self, observation: Any) -> NDArray[Any]:
        """Return the next k actions for one observation, (k, *shape), or for several, (N, k, ...).

        Raises:
            InputError: The observation has another shape, or is not finite.
        """
        rows, is_single = self._observed(observation)
        actions = self._chunks_for(rows)
        return actions[0] if is_single else actions

    def _chunks_for(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Return the next k actions, (N, k, *shape), for rows, (N, O)."""
        decided = self.learner.act(rows, chunks=True)
        flat = self._port.to_env(decided.reshape(-1, *decided.shape[2:]))
        return flat.reshape(*decided.shape[:2], *flat.shape[1:])

    def export_onnx(self, path: str | Path) -> Path:
        """Write the greedy policy as `SoloAgent.export_onnx` does.

        Where k > 1, the file also gives ``chunk``, (N, k, *shape); ``actions`` begin it.
        """
        if self.config.chunk_length == 1:
            return super().export_onnx(path)
        onnx_graph.require_onnx()
        space = self.envs.layout
        policy = onnx_graph.ObservationParts(_Chunked(self.learner.chunks, self._port), space)
        signature = onnx_graph.observation_signature(space, self.device)
        signature = replace(signature, outputs=("actions", "chunk"))
        return onnx_graph.write_policy(policy, signature, Path(path), self._onnx_metadata())

    def player(self) -> ChunkPlayer:
        """Return what plays whole episodes, one observation after the other."""
        return ChunkPlayer(self.config, self.predict_chunk)

    def _player(self) -> Callable[[NDArray[Any], Sequence[int]], NDArray[Any]]:
        """Return what plays chunks in each of several episodes."""
        if self.config.chunk_length == 1:
            return super()._player()
        players: dict[int, ChunkPlayer] = {}

        def play(rows: NDArray[Any], episodes: Sequence[int]) -> NDArray[Any]:
            begun = {each: players.get(each) or self._row_player() for each in episodes}
            players.clear()
            players.update(begun)
            return np.stack([begun[each](row) for each, row in zip(episodes, rows, strict=True)])

        return play

    def _row_player(self) -> ChunkPlayer:
        return ChunkPlayer(self.config, lambda row: self._chunks_for(row[None])[0])

    def _explore(self, rows: NDArray[Any]) -> NDArray[Any]:
        return self.learner.draw(rows, self.acting)

    def _learned_state(self) -> dict[str, Any]:
        return {
            "learner": self.learner.state_dict(),
            "acting": self.acting.get_state(),
            "held_out_loss": self.held_out_loss,
            "demonstrations": self._source.state_dict(),
        }

    def _load_learned_state(self, state: Mapping[str, Any]) -> None:
        learner = state["learner"]
        state = {**learner, **state}  # where files of earlier versions have the rest
        self.learner.load_state_dict(learner)
        self.acting.set_state(state["acting"])
        self.held_out_loss = state["held_out_loss"]
        self._source.load_state_dict(state["demonstrations"])
        self._chunks = None  # they are read again, and compared
