"""What a loop needs of an off-policy algorithm, and a base for those made of callbacks.

Axes:  B = batch, N = environments, O = observation, A = action components,
       W = width of an action as the memory stores it (A, or 1 for an index).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from cadenza.core.arrays import Float32Array
from cadenza.core.errors import CheckpointError, ConfigurationError
from cadenza.core.seeding import derive_substream
from cadenza.learn.algorithms.update_step import UpdateStep
from cadenza.learn.callback import Callback
from cadenza.learn.callbacks.loss import LossCallback
from cadenza.learn.configs import CompilableConfig
from cadenza.learn.loaded_state import complete_state
from cadenza.learn.memory.builder import TransitionMemory
from cadenza.learn.nn.encoding import EncodedNetwork, EncoderFactory, Network, with_encoder
from cadenza.learn.nn.mlp_policy import MlpPolicy
from cadenza.learn.trainer import Trainer

#: Layout version of `CallbackLearner.state_dict`.
STATE_VERSION: Final = 2


class ReplayLearner(Protocol):
    """Acts on flat observations and learns from a memory; actions are in [−1, 1]."""

    @property
    def greedy(self) -> nn.Module:
        """The policy without chance: (B, O) to actions in [−1, 1], (B, A), or to choices, (B,)."""
        ...

    @property
    def action_width(self) -> int:
        """W."""
        ...

    @property
    def action_dtype(self) -> type[np.generic]:
        """Element type of stored actions."""
        ...

    def act(self, states: Float32Array, *, frames: int) -> NDArray[Any]:
        """Return exploring actions as the memory stores them, (N, W), for states (N, O).

        Args:
            states: Shape (N, O).
            frames: Environment frames done, for exploration that fades.
        """
        ...

    def random_actions(self, rows: int) -> NDArray[Any]:
        """Return uniformly drawn actions as the memory stores them, (``rows``, W)."""
        ...

    def to_unit(self, stored: NDArray[Any]) -> Float32Array:
        """Return stored actions as vectors in [−1, 1], (N, A)."""
        ...

    def learn(self, memory: TransitionMemory) -> dict[str, float]:
        """Do one update; return figures of it by name."""
        ...

    def policy(self, low: Float32Array, high: Float32Array) -> MlpPolicy:
        """Return the greedy policy with actions scaled to [low, high], (A,) each."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return everything the future depends on, memory excepted."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        ...


class CallbackLearner:
    """Runs callbacks on batches of its own choice and saves them all.

    Args:
        name: Part of the stream names ``learn.<name>.torch`` and ``learn.<name>.noise``.
        observation_dim: O.
        config: Settings of the updates.
        seed: Root of those streams.
        encoder: Makes the encoder that each network gets; None lets them see the observation.

    Attributes:
        config: As given.
        losses: The losses, in order; loggers take them.
        greedy: See `ReplayLearner`; it shares the weights.
        weights: Generator of the initial weights.
        noise: Generator of everything drawn later.
    """

    greedy: nn.Module

    def __init__(
        self,
        name: str,
        observation_dim: int,
        config: CompilableConfig,
        *,
        seed: int,
        encoder: EncoderFactory | None,
    ) -> None:
        self.config = config
        self.observation_dim = observation_dim
        self._make_encoder = encoder
        self.weights = torch.Generator().manual_seed(
            derive_substream(f"learn.{name}.torch", root_seed=seed).integer_seed()
        )
        self.noise = torch.Generator().manual_seed(
            derive_substream(f"learn.{name}.noise", root_seed=seed).integer_seed()
        )
        self._name = name
        self._callbacks: list[Callback] = []
        self.losses: list[LossCallback] = []
        self._trainer = Trainer([], [])

    def run(
        self,
        stages: Sequence[Sequence[LossCallback]],
        target: Any,
        draw: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None,
    ) -> None:
        """Take the parts of the algorithm, whose names must differ; see `UpdateStep`."""
        step = UpdateStep(
            target, stages, draw=draw, compile=self.config.compile, precision=self.config.precision
        )
        self.losses = [loss for losses in stages for loss in losses]
        self._callbacks = [*self.losses, target, step]
        self._trainer = Trainer([step], [])

    def encoded(
        self, build: Callable[[int], Network]
    ) -> tuple[Network, nn.Module, list[nn.Module]]:
        """Return a network alone, behind an encoder of its own, and that encoder, if there is one.

        Args:
            build: Makes the network from the width of what it sees.
        """
        network, encoder = with_encoder(self._make_encoder, self.observation_dim, build)
        return network, EncodedNetwork(encoder[0], network) if encoder else network, encoder

    def relu_policy(
        self,
        *layers: nn.Module,
        output: str,
        low: Float32Array,
        high: Float32Array,
        choices: NDArray[Any] | None = None,
    ) -> MlpPolicy:
        """Return the linear layers within ``layers``, in order, as a policy that shares weights.

        Raises:
            ConfigurationError: An encoder comes before them.
        """
        if self._make_encoder is not None:
            raise ConfigurationError(
                f"{self._name}: expected a learner without encoder for a policy of linear layers, "
                "got one with; use `greedy`."
            )
        linear = [m for each in layers for m in each.modules() if isinstance(m, nn.Linear)]
        return MlpPolicy(
            weights=[p.detach() for layer in linear for p in (layer.weight, layer.bias)],
            activation="relu",
            output=output,
            low=torch.tensor(low),
            high=torch.tensor(high),
            choices=torch.zeros((0, 0)) if choices is None else torch.tensor(choices),
        )

    def learn(self, memory: TransitionMemory) -> dict[str, float]:
        """Do one update of everything that is due; return figures of it by name."""
        return self.train_on(memory.sample(self.config.batch_size))

    def train_on(self, batch: Mapping[str, Any]) -> dict[str, float]:
        """Do one step on ``batch``; return the losses by name."""
        self._trainer.train_on({"default": batch, "batch_size": len(batch["rewards"])})
        figures: dict[str, float] = {}
        for loss in self.losses:
            key = f"{loss.name}_loss"
            if f"loss/{key}" in loss.scalar_logs:
                figures[key] = loss.scalar_logs[f"loss/{key}"]
        return figures

    def state_dict(self) -> dict[str, Any]:
        """Return callbacks, step numbers and the noise: tensors and JSON scalars."""
        return {
            "version": STATE_VERSION,
            "algorithm": self._name,
            "callbacks": {callback.name: callback.state_dict() for callback in self._callbacks},
            "bp_step": self._trainer.state.get("bp_step", 0),
            "bp_samples": self._trainer.state.get("bp_samples", 0),
            "noise": self.noise.get_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken.

        Raises:
            CheckpointError: The state is of another algorithm or version, incomplete, or of other
                sizes.
        """
        found = (state.get("version"), state.get("algorithm"))
        if found != (STATE_VERSION, self._name):
            raise CheckpointError(
                f"{self._name}: expected a state of this algorithm, version {STATE_VERSION}, got "
                f"{found[1]!r}, version {found[0]!r}."
            )
        with complete_state(self._name, "a learner of these sizes"):
            for callback in self._callbacks:
                callback.load_state_dict(dict(state["callbacks"][callback.name]))
            self._trainer.state["bp_step"] = int(state["bp_step"])
            self._trainer.state["bp_samples"] = int(state["bp_samples"])
            self.noise.set_state(state["noise"])


class BoxLearner(CallbackLearner):
    """Base of learners whose actions are vectors in [−1, 1].

    Args:
        name: See `CallbackLearner`.
        observation_dim: O.
        action_dim: A.
        config: See `CallbackLearner`.
        seed: See `CallbackLearner`.
        encoder: See `CallbackLearner`.
    """

    def __init__(
        self,
        name: str,
        observation_dim: int,
        action_dim: int,
        config: CompilableConfig,
        *,
        seed: int,
        encoder: EncoderFactory | None,
    ) -> None:
        super().__init__(name, observation_dim, config, seed=seed, encoder=encoder)
        self._action_dim = action_dim

    @property
    def action_width(self) -> int:
        """A."""
        return self._action_dim

    @property
    def action_dtype(self) -> type[np.generic]:
        """Element type of stored actions."""
        return np.float32

    def random_actions(self, rows: int) -> NDArray[Any]:
        """Return uniform actions in [−1, 1], (``rows``, A)."""
        drawn = torch.rand((rows, self._action_dim), generator=self.noise)
        return (drawn * 2.0 - 1.0).numpy()

    def to_unit(self, stored: NDArray[Any]) -> Float32Array:
        """Return the actions themselves."""
        return stored
