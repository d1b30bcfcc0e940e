"""What a loop needs of an off-policy algorithm, and a base for those made of callbacks.

Axes:  B = batch, N = environments, O = observation, A = action components,
       W = width of an action as the memory stores it (A, or 1 for an index).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cadenza.core.arrays import Float32Array
from cadenza.core.errors import CheckpointError
from cadenza.core.seeding import derive_substream
from cadenza.learn.algorithms.update_step import UpdateStep
from cadenza.learn.callback import Callback
from cadenza.learn.callbacks.loss import LossCallback
from cadenza.learn.learners.settings import LearnerNumbers
from cadenza.learn.loaded_state import complete_state
from cadenza.learn.memory.transitions import TransitionMemory
from cadenza.learn.nn.mlp_policy import MlpPolicy
from cadenza.learn.trainer import Trainer

#: Layout version of `CallbackLearner.state_dict`.
STATE_VERSION: Final = 2


class ReplayLearner(Protocol):
    """Acts on flat observations and learns from a memory; actions are in [−1, 1]."""

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
        numbers: Numbers of the updates.
        seed: Root of those streams.

    Attributes:
        numbers: As given.
        weights: Generator of the initial weights.
        noise: Generator of everything drawn later.
    """

    def __init__(self, name: str, numbers: LearnerNumbers, *, seed: int) -> None:
        self.numbers = numbers
        self.weights = torch.Generator().manual_seed(
            derive_substream(f"learn.{name}.torch", root_seed=seed).integer_seed()
        )
        self.noise = torch.Generator().manual_seed(
            derive_substream(f"learn.{name}.noise", root_seed=seed).integer_seed()
        )
        self._name = name
        self._callbacks: list[Callback] = []
        self._losses: list[LossCallback] = []
        self._trainer = Trainer([], [])

    def run(
        self,
        stages: Sequence[Sequence[LossCallback]],
        target: Any,
        draw: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None,
    ) -> None:
        """Take the parts of the algorithm, whose names must differ; see `UpdateStep`."""
        numbers = self.numbers
        step = UpdateStep(
            target, stages, draw=draw, compile=numbers.compile, precision=numbers.precision
        )
        self._losses = [loss for losses in stages for loss in losses]
        self._callbacks = [*self._losses, target, step]
        self._trainer = Trainer([step], [])

    def train_on(self, batch: Mapping[str, Any]) -> dict[str, float]:
        """Do one step on ``batch``; return the losses by name."""
        self._trainer.train_on({"default": batch, "batch_size": len(batch["rewards"])})
        figures: dict[str, float] = {}
        for loss in self._losses:
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
        numbers: See `CallbackLearner`.
        action_dim: A.
        seed: See `CallbackLearner`.
    """

    def __init__(self, name: str, numbers: LearnerNumbers, *, action_dim: int, seed: int) -> None:
        super().__init__(name, numbers, seed=seed)
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


def linear_weights(*modules: torch.nn.Module) -> list[Tensor]:
    """Return weights and biases of all linear layers within ``modules``, in order; detached."""
    layers = [m for module in modules for m in module.modules() if isinstance(m, torch.nn.Linear)]
    return [parameter.detach() for layer in layers for parameter in (layer.weight, layer.bias)]
