"""Which data the policy learns from in each step: real transitions or the model's."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol, cast

import torch

from cadenza.core.errors import ConfigurationError, NotReadyError
from cadenza.core.schedules import BPStepScheduler
from cadenza.learn.callback import BatchCallback, Callback
from cadenza.learn.callbacks.logging_mixin import LoggingMixin
from cadenza.learn.loaded_state import require_parts


class ModelBatches(Protocol):
    """A loader over the memory of simulated transitions, such as `MemoryLoader`."""

    def is_ready(self) -> bool:
        """Return whether a batch can be drawn."""
        ...

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Return an iterator over batches ``{rl_data_group: ..., size_key: rows}``."""
        ...


class BatchSampler(LoggingMixin, BatchCallback):
    """Gives the policy's losses one batch per step: from the model with probability p, else real.

    A real batch is copied, so callbacks that change the policy's batch leave the model's training
    data alone. While the loader is not ready, all batches are real.

    Args:
        dataloader: Loader of simulated batches; its data group must be ``rl_data_group``.
        prob_scheduler: p by number of batches seen.
        data_group: Group of the real batch.
        rl_data_group: Group that the policy's losses read.
        generator: Draws the choices; None makes one seeded 0.
    """

    def __init__(
        self,
        dataloader: ModelBatches,
        prob_scheduler: BPStepScheduler,
        data_group: str = "default",
        rl_data_group: str = "rl_buffer",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.dataloader = dataloader
        self.data_group = data_group
        self.rl_data_group = rl_data_group
        self._scheduler = prob_scheduler
        self._rng = torch.Generator().manual_seed(0) if generator is None else generator
        self._iterator: Iterator[dict[str, Any]] | None = None
        self._counter = 0

    @Callback.whole_state
    def begin_batch(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return ``{rl_data_group: batch}``, and the size of the batch if it is simulated.

        Raises:
            NotReadyError: There is no real batch in the state.
        """
        del args
        self._counter += 1
        probability = self._scheduler.evaluate_at(self._counter)
        self.log_scalar("training/prob_sampling_from_model", probability)
        if self.use_model_batch():
            return self.sample_model_batch()
        if self.data_group not in kwargs:
            raise NotReadyError(
                f"BatchSampler: expected the group {self.data_group!r} in the state, got "
                f"{sorted(kwargs)}; set data_group to that of the loader of real data."
            )
        return {self.rl_data_group: _copied(kwargs[self.data_group])}

    def use_model_batch(self) -> bool:
        """Return whether this step's batch comes from the model; draws one number."""
        probability = self._scheduler.evaluate_at(self._counter)
        draw = torch.rand((), generator=self._rng, device=self._rng.device)
        return bool(draw < probability) and self.dataloader.is_ready()

    def sample_model_batch(self) -> dict[str, Any]:
        """Return the next simulated batch; an exhausted loader starts again.

        Raises:
            ConfigurationError: The loader is empty, or its batches belong to another group.
        """
        if self._iterator is None:
            self._iterator = iter(self.dataloader)
        batch = next(self._iterator, None)
        if batch is None:
            self._iterator = iter(cast("Iterable[dict[str, Any]]", self.dataloader))
            batch = next(self._iterator, None)
        if batch is None or self.rl_data_group not in batch:
            got = "none" if batch is None else str(sorted(batch))
            raise ConfigurationError(
                f"BatchSampler: expected batches with the group {self.rl_data_group!r} from its "
                f"loader, got {got}; give the loader that data_group."
            )
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Return logs, number of batches and generator."""
        state = super().state_dict()
        state["batches"] = self._counter
        state["generator"] = self._rng.get_state()
        return state

    def load_state_dict(
        self,
        state_dict: dict[str, Any],
        load_network: bool = True,
        load_optimizer: bool = True,
        load_hparams: bool = True,
    ) -> None:
        """Go on where `state_dict` was taken (with ``load_hparams``).

        Raises:
            CheckpointKeyError: A part is missing.
        """
        super().load_state_dict(state_dict, load_network, load_optimizer, load_hparams)
        if not load_hparams:
            return
        require_parts("BatchSampler", state_dict, ("batches", "generator"))
        self._counter = int(state_dict["batches"])
        self._rng.set_state(state_dict["generator"].cpu())


def _copied(value: Any) -> Any:
    """Return a copy of nested mappings of tensors that shares no tensor with ``value``."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, Mapping):
        entries = cast("Mapping[str, Any]", value)
        return {key: _copied(entry) for key, entry in entries.items()}
    return value
