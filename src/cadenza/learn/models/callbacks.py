"""The callbacks of model-based training: rollouts in the model, and what the policy learns from.

Source:  branched rollouts of MBPO, arXiv:1906.08253, section 4.2.
Axes:    E = simulated environments = rows of the real batch, D = observation columns.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Protocol, cast

import torch
from torch import Tensor

from cadenza.core.errors import ConfigurationError, InputError, NotReadyError
from cadenza.core.schedules import BPStepScheduler
from cadenza.core.types import AgentId, DictObservation, DictResponse, EpisodeState
from cadenza.learn.callback import BatchCallback, Callback
from cadenza.learn.callbacks.logging_mixin import LoggingMixin
from cadenza.learn.loaded_state import require_parts
from cadenza.learn.models.model_env import ModelEnv
from cadenza.learn.models.model_loss import ModelLoss
from cadenza.learn.models.progress_check import LossProgressCheck
from cadenza.learn.observed_input import observed_input

__all__ = ["BatchSampler", "LossProgressCheck", "ModelBasedCollector", "ModelLoss"]

_ENDINGS: Final = (EpisodeState.TERMINAL, EpisodeState.INTERRUPTED)


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


_logger = logging.getLogger(__name__)


#: Observations by agent id to responses by agent id.
Agent = Callable[[dict[AgentId, DictObservation]], dict[AgentId, DictResponse]]


class GrowingMemory(Protocol):
    """What the collector asks of a memory; `MemoryTableProxy` has it."""

    def add(
        self,
        observations: Mapping[AgentId, DictObservation],
        responses: Mapping[AgentId, DictResponse],
    ) -> None:
        """Store one step of every agent."""
        ...

    def resize(self, new_size: int) -> None:
        """Let the memory hold ``new_size`` transitions."""
        ...


class ModelBasedCollector(LoggingMixin, BatchCallback):
    """Rolls the policy out in the model before every batch, and stores what happened.

    Every rollout is closed: after its last step all open episodes have got their final observation,
    and the episodes that would start then are never stored.

    Args:
        model_env: The simulator; its ``num_envs`` equals the rows of the real batch.
        agent: The policy.
        memory: Where simulated episodes go.
        rollout_scheduler: Length of a rollout by number of batches, rounded down; below 1 there is
            none. It may fall as well as rise.
        num_bp_to_retain_buffer: Batches whose transitions the memory has room for. It grows with
            the length of the rollouts, and keeps its size when they get shorter.
        data_group: Group of the real batch.
        input_key: Observation that the rollouts start from.
        collect_interval: Batches between rollouts; the memory then has room for
            ``num_bp_to_retain_buffer`` rollouts.

    Raises:
        InputError: A number is below one.
    """

    def __init__(
        self,
        model_env: ModelEnv,
        agent: Agent,
        memory: GrowingMemory,
        rollout_scheduler: BPStepScheduler,
        num_bp_to_retain_buffer: int = 1_000_000,
        data_group: str = "default",
        input_key: str = "obs",
        *,
        collect_interval: int = 1,
    ) -> None:
        super().__init__()
        if min(num_bp_to_retain_buffer, collect_interval) < 1:
            raise InputError(
                "ModelBasedCollector: expected num_bp_to_retain_buffer >= 1 and collect_interval "
                f">= 1, got {num_bp_to_retain_buffer} and {collect_interval}."
            )
        self.data_group = data_group
        self.model_env = model_env
        self.agent = agent
        self.memory = memory
        self.rollout_scheduler = rollout_scheduler
        self.len_rollout = 0
        self.obs: dict[AgentId, DictObservation] = {}
        self._retain = num_bp_to_retain_buffer
        self._interval = collect_interval
        self._input_key = input_key
        self._counter = 0
        self._capacity = 0

    @Callback.whole_state
    def begin_batch(self, *args: Any, **kwargs: Any) -> None:
        """Roll the policy out from the observations of the batch, if it is time."""
        self._counter += 1
        self.update_rollout_size()
        self.log_scalar("training/model_rollout_length", self.len_rollout)
        if self.len_rollout < 1 or (self._counter - 1) % self._interval != 0:
            return
        start = self.get_batch(*args, **kwargs)
        self.obs = self.model_env.dict_reset(start, self.len_rollout)
        for _ in range(self.len_rollout):
            self.collect_sample()
        last = {a: o for a, o in self.obs.items() if o.episode_state in _ENDINGS}
        self.memory.add(last, {})
        self.obs = {}

    def get_batch(self, observation: dict[str, Tensor]) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride] -- hooks name what they read
        """Return the observations that rollouts start from, shape (E, D).

        Raises:
            InputError: The batch lacks ``input_key``.
        """
        return observed_input("ModelBasedCollector", observation, self._input_key)

    def collect_sample(self) -> None:
        """Take one step in every simulated environment and store what was seen and done."""
        responses = self.agent(self.obs)
        next_obs, _ = self.model_env.dict_step(responses)
        self.memory.add(self.obs, responses)
        self.obs = next_obs

    def update_rollout_size(self) -> None:
        """Take the length of a rollout from the schedule; make room if it needs more."""
        length = int(self.rollout_scheduler.evaluate_at(self._counter))
        self.len_rollout = length
        wanted = length * self.model_env.num_envs * self._retain
        if wanted <= self._capacity:
            return
        self._capacity = wanted
        try:
            self.memory.resize(wanted)
        except ValueError:  # it was made larger than this
            _logger.info("simulated memory keeps its size: it has room for %d transitions", wanted)

    def state_dict(self) -> dict[str, Any]:
        """Return logs, number of batches and the simulator's state; the memory saves itself."""
        state = super().state_dict()
        state["batches"] = self._counter
        state["model_env"] = self.model_env.state_dict()
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
        require_parts("ModelBasedCollector", state_dict, ("batches", "model_env"))
        self._counter = int(state_dict["batches"])
        self._capacity = 0  # the next batch makes room again, if the memory has lost it
        self.model_env.load_state_dict(state_dict["model_env"])
