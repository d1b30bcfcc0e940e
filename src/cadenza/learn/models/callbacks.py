"""Model-based training: the loss of a model, rollouts in it, and what the policy learns from.

`LossProgressCheck` asks in acceptance runs whether the model learns at all.

Test:    Mann-Kendall on the mean errors e_1 ... e_n of n equal windows,
         S = sum_{i<j} sign(e_j - e_i); P(S <= s) under "no trend" is exact, from the number of
         permutations with a given number of inversions. Ties add nothing to S.
Source:  branched rollouts of MBPO, arXiv:1906.08253, section 4.2; Mann, Econometrica 1945; Kendall,
         "Rank Correlation Methods", 1975.
Axes:    B = rows, E = simulated environments = rows of the real batch, D = observation columns,
         A = action columns.
"""

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol, Unpack

import torch
from torch import Tensor, optim

from cadenza.core.checks import require_counts
from cadenza.core.errors import (
    CadenzaError,
    ConfigurationError,
    InputError,
    NotReadyError,
    refuse,
)
from cadenza.core.schedules import BPStepScheduler
from cadenza.core.types import AgentId, DictObservation, DictResponse
from cadenza.learn.callback import BatchCallback, Callback
from cadenza.learn.callbacks.checkpointing import snapshot
from cadenza.learn.callbacks.logging_mixin import LoggingMixin
from cadenza.learn.callbacks.loss import LossCallback, LossKeywords, observed_input
from cadenza.learn.loaded_state import require_parts
from cadenza.learn.models.hold_out import HoldOut
from cadenza.learn.models.model import DynamicModel
from cadenza.learn.models.model_env import ModelEnv
from cadenza.learn.proxies import ENDINGS, MemoryProxy
from cadenza.learn.trainer import TrainingShutdownException

#: Windows of a check; each is averaged over num_bp // 10 batches.
WINDOWS: Final = 10
#: Chance that a model whose errors merely fluctuate passes; S <= -21 of 45 for ten windows.
SIGNIFICANCE: Final = 0.05


class LossProgressError(CadenzaError, RuntimeError):
    """A model's prediction errors did not fall."""


def falling_trend_p_value(values: Sequence[float]) -> float:
    """Return the chance of a trend as falling as that of finite ``values`` if there is none."""
    count = len(values)
    falls = sum(values[j] < values[i] for i in range(count) for j in range(i + 1, count))
    rises = sum(values[j] > values[i] for i in range(count) for j in range(i + 1, count))
    pairs = count * (count - 1) // 2
    inversions = math.ceil((pairs + falls - rises) / 2)  # S = pairs - 2 * inversions
    return sum(_inversion_counts(count)[inversions:]) / math.factorial(count)


def _inversion_counts(count: int) -> list[int]:
    """Return how many permutations of ``count`` numbers have 0, 1, 2, ... inversions."""
    numbers = [1]
    for size in range(2, count + 1):
        wider = [0] * (len(numbers) + size - 1)
        for place in range(size):
            for inversions, ways in enumerate(numbers):
                wider[inversions + place] += ways
        numbers = wider
    return numbers


class LossProgressCheck(LoggingMixin, BatchCallback):
    """Ends training after ``num_bp`` >= 10 steps: well if the model's errors fell, else raising.

    ``generator`` draws the model's predictions, on its device; None makes one seeded 0.
    """

    def __init__(
        self,
        model: DynamicModel,
        num_bp: int,
        data_group: str = "default",
        input_key: str = "obs",
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if num_bp < WINDOWS:
            refuse(InputError, "LossProgressCheck", expected=f"num_bp >= {WINDOWS}", got=num_bp)
        self.cycle = num_bp
        self.data_group = data_group
        self.model = model
        self._window = num_bp // WINDOWS
        self._input_key = input_key
        self._rng = generator or torch.Generator(device=model.device).manual_seed(0)
        self._errors: dict[str, list[float]] = {"obs": [], "rew": []}

    def get_batch(  # pyright: ignore[reportIncompatibleMethodOverride] -- hooks name what they read
        self,
        observation: dict[str, Tensor],
        next_observation: dict[str, Tensor],
        actions: Tensor,
        rewards: Tensor,
    ) -> None:
        """Measure the model's mean absolute errors on a batch: (B, D), (B, A) and (B, 1)."""
        with torch.no_grad():
            next_obs, reward = self.model.sample(
                action=actions, observation=observation[self._input_key], rng=self._rng
            )
        self._note("obs", (next_obs - next_observation[self._input_key]).abs().mean())
        if reward is not None:
            self._note("rew", (reward - rewards.reshape(reward.shape)).abs().mean())

    def end_cycle(self) -> None:
        """Judge the trend of the errors.

        Raises:
            LossProgressError: No significant fall, for observations or for rewards.
            TrainingShutdownException: The check passed.
        """
        for kind, errors in self._errors.items():
            size = self._window
            starts = range(0, min(WINDOWS, len(errors) // size) * size, size)
            means = [math.fsum(errors[start : start + size]) / size for start in starts]
            p_value = falling_trend_p_value(means) if means else 0.0
            if p_value > SIGNIFICANCE:
                expected = f"the {kind} prediction error to fall over {self.cycle} steps"
                told = [round(mean, 4) for mean in means]
                got = f"p = {p_value:.2g} > {SIGNIFICANCE} for the window means {told}"
                advice = "lower the learning rate or check the data"
                owner = "LossProgressCheck"
                refuse(LossProgressError, owner, expected=expected, got=got, do=advice)
        raise TrainingShutdownException("the model's prediction errors fell")

    def state_dict(self) -> dict[str, Any]:
        """Return logs, errors so far and generator."""
        errors = {kind: list(errors) for kind, errors in self._errors.items()}
        return {**super().state_dict(), "errors": errors, "generator": self._rng.get_state()}

    def _load_rest(self, state: Mapping[str, Any]) -> None:
        super()._load_rest(state)
        require_parts("LossProgressCheck", state, ("errors", "generator"))
        self._errors = {kind: list(state["errors"][kind]) for kind in self._errors}
        self._rng.set_state(state["generator"].cpu())

    def _note(self, kind: str, error: Tensor) -> None:
        """Log and remember one error."""
        self.log_scalar(f"mbrl/{kind}_pred_err", error)
        self._errors[kind].append(float(error))


class ModelLoss(LossCallback):
    """Steps the optimiser of a dynamics model once per batch.

    ``hold_out`` keeps data out of training, stops it early and picks elites of an ensemble; without
    it the model is always trained, on everything. Other arguments are those of `LossCallback`.
    """

    def __init__(
        self,
        *,
        model: DynamicModel,
        opt: optim.Optimizer,
        name: str = "dynamic_model",
        input_key: str = "obs",
        hold_out: HoldOut | None = None,
        **others: Unpack[LossKeywords],
    ) -> None:
        super().__init__(name=name, network=model, optimizer=opt, **others)
        if hold_out is not None:
            _ = model.ensemble
        self.model = model
        self.hold_out = hold_out
        self._input_key = input_key

    def backward(
        self,
        observation: dict[str, Tensor],
        next_observation: dict[str, Tensor],
        actions: Tensor,
        rewards: Tensor,
        masks: Tensor | None = None,
    ) -> None:
        """Do one optimiser step, unless the hold-out says to rest.

        Arrays are (B, D), (B, A) and (B, 1); masks, 0 where the transition ended its episode, are
        needed by a termination model only.
        """
        if self.hold_out is None:
            super().backward(observation, next_observation, actions, rewards, masks)
            return
        obs, next_obs = self._modelled(observation), self._modelled(next_observation)
        train = self.hold_out.keep((obs, next_obs, actions, rewards))
        if not self.hold_out.resting and bool(train.any()):
            kept, after = {self._input_key: obs[train]}, {self._input_key: next_obs[train]}
            goes_on = None if masks is None else masks[train]
            super().backward(kept, after, actions[train], rewards[train], goes_on)
        self.hold_out.after_step(self.model)
        self.log_scalar(f"loss/{self.name}_resting", float(self.hold_out.resting))
        if self.hold_out.errors:
            mean = sum(self.hold_out.errors) / len(self.hold_out.errors)
            self.log_scalar(f"loss/{self.name}_holdout_error", mean)

    def loss(
        self,
        observation: dict[str, Tensor],
        next_observation: dict[str, Tensor],
        actions: Tensor,
        rewards: Tensor,
        masks: Tensor | None = None,
    ) -> Tensor:
        """Return the model's loss on a batch; arguments as for `backward`."""
        loss, info = self.model.loss(
            obs=self._modelled(observation),
            next_obs=self._modelled(next_observation),
            action=actions,
            reward=rewards,
            terminated=None if masks is None else 1.0 - masks,
        )
        for key, value in info.items():
            self.log_scalar(f"loss/{self.name}_{key}", value)
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Return logs, model with normalisers, optimiser, schedule and hold-out."""
        kept = {} if self.hold_out is None else {"hold_out": self.hold_out.state_dict()}
        return {**super().state_dict(), **kept}

    def _load_rest(self, state: Mapping[str, Any]) -> None:
        super()._load_rest(state)
        if self.hold_out is None:
            return
        require_parts(self.name, state, ("hold_out",))
        self.hold_out.load_state_dict(state["hold_out"], self.model.device)

    def _modelled(self, observation: dict[str, Tensor]) -> Tensor:
        """Return the observation that is modelled, shape (B, D)."""
        return observed_input("ModelLoss", observation, self._input_key)


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
        self._rng = generator or torch.Generator().manual_seed(0)
        self._iterator: Iterator[dict[str, Any]] = iter(())
        self._counter = 0

    @Callback.whole_state
    def begin_batch(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return ``{rl_data_group: batch}``, and the size of the batch if it is simulated."""
        del args
        self._counter += 1
        probability = self._scheduler.evaluate_at(self._counter)
        self.log_scalar("training/prob_sampling_from_model", probability)
        if self.use_model_batch():
            return self.sample_model_batch()
        if self.data_group not in kwargs:
            expected = f"the group {self.data_group!r} in the state"
            advice = "set data_group to that of the loader of real data"
            refuse(NotReadyError, "BatchSampler", expected=expected, got=sorted(kwargs), do=advice)
        return {self.rl_data_group: snapshot(kwargs[self.data_group])}

    def use_model_batch(self) -> bool:
        """Return whether this step's batch comes from the model; draws one number."""
        probability = self._scheduler.evaluate_at(self._counter)
        draw = torch.rand((), generator=self._rng, device=self._rng.device)
        return bool(draw < probability) and self.dataloader.is_ready()

    def sample_model_batch(self) -> dict[str, Any]:
        """Return the next simulated batch; an exhausted loader starts again."""
        batch = next(self._iterator, None)
        if batch is None:
            self._iterator = iter(self.dataloader)
            batch = next(self._iterator, None)
        if batch is None or self.rl_data_group not in batch:
            expected = f"batches with the group {self.rl_data_group!r} from its loader"
            got = "none" if batch is None else sorted(batch)
            advice = "give the loader that data_group"
            refuse(ConfigurationError, "BatchSampler", expected=expected, got=got, do=advice)
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Return logs, number of batches and generator."""
        generator = self._rng.get_state()
        return {**super().state_dict(), "batches": self._counter, "generator": generator}

    def _load_rest(self, state: Mapping[str, Any]) -> None:
        super()._load_rest(state)
        require_parts("BatchSampler", state, ("batches", "generator"))
        self._counter = int(state["batches"])
        self._rng.set_state(state["generator"].cpu())


_logger = logging.getLogger(__name__)

#: Observations by agent id to responses by agent id.
Agent = Callable[[dict[AgentId, DictObservation]], dict[AgentId, DictResponse]]


class GrowingMemory(MemoryProxy, Protocol):
    """What the collector asks of a memory; `MemoryTableProxy` has it."""

    def resize(self, new_size: int) -> None:
        """Let the memory hold ``new_size`` transitions."""
        ...


class ModelBasedCollector(LoggingMixin, BatchCallback):
    """Rolls the policy out in the model before every batch, and stores what happened.

    Every rollout is closed: after its last step all open episodes have got their final observation,
    and the episodes that would start then are never stored.

    Args:
        model_env: The simulator; its ``num_envs`` equals the rows of the real batch.
        rollout_scheduler: Length of a rollout by number of batches, rounded down; below 1 there is
            none. It may fall as well as rise.
        num_bp_to_retain_buffer: Batches whose transitions the memory has room for. It grows with
            the length of the rollouts, and keeps its size when they get shorter.
        collect_interval: Batches between rollouts; the memory then has room for
            ``num_bp_to_retain_buffer`` rollouts.
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
        require_counts(
            "ModelBasedCollector",
            num_bp_to_retain_buffer=num_bp_to_retain_buffer,
            collect_interval=collect_interval,
        )
        self.data_group = data_group
        self.model_env = model_env
        self.agent = agent
        self.memory = memory
        self.rollout_scheduler = rollout_scheduler
        self.len_rollout: int = 0
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
        last = {a: o for a, o in self.obs.items() if o.episode_state in ENDINGS}
        self.memory.add(last, {})
        self.obs = {}

    def get_batch(self, observation: dict[str, Tensor]) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride] -- hooks name what they read
        """Return the observations that rollouts start from, shape (E, D)."""
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
        simulator = self.model_env.state_dict()
        return {**super().state_dict(), "batches": self._counter, "model_env": simulator}

    def _load_rest(self, state: Mapping[str, Any]) -> None:
        super()._load_rest(state)
        require_parts("ModelBasedCollector", state, ("batches", "model_env"))
        self._counter = int(state["batches"])
        self._capacity = 0  # the next batch makes room again, if the memory has lost it
        self.model_env.load_state_dict(state["model_env"])
