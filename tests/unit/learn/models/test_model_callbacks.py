from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from cadenza.core.errors import CheckpointKeyError
from cadenza.core.schedules import BPStepScheduler
from cadenza.core.types import DictObservation, DictResponse, EpisodeState
from cadenza.learn.callback import Callback
from cadenza.learn.models import BatchSampler, ModelBasedCollector, ModelEnv
from cadenza.learn.trainer import Trainer
from tests.unit.learn.models.test_model_env import Adder

START = torch.arange(3.0).unsqueeze(1)


class Memory:
    """Counts open episodes and finished transitions, as a table proxy would."""

    def __init__(self) -> None:
        self.open: dict[int, int] = {}
        self.finished: list[int] = []
        self.sizes: list[int] = []
        self.maxlen = 0

    def add(
        self, observations: Mapping[int, DictObservation], responses: Mapping[int, DictResponse]
    ) -> None:
        for agent, observation in observations.items():
            if observation.episode_state in (EpisodeState.TERMINAL, EpisodeState.INTERRUPTED):
                self.finished.append(self.open.pop(agent))
            else:
                assert agent in responses
                self.open[agent] = self.open.get(agent, 0) + 1

    def resize(self, new_size: int) -> None:
        if new_size < self.maxlen:
            raise ValueError("smaller")
        self.maxlen = new_size
        self.sizes.append(new_size)


def always_one(observations: dict[int, DictObservation]) -> dict[int, DictResponse]:
    active = (EpisodeState.INITIAL, EpisodeState.RUNNING)
    return {
        agent: DictResponse({"actions": [1.0]}, {})
        for agent, o in observations.items()
        if o.episode_state in active
    }


def collector(
    memory: Memory, length: BPStepScheduler | int = 5, limit: float = 1e9, **options: Any
) -> ModelBasedCollector:
    env = ModelEnv(
        num_envs=3, model=Adder(), termination_fn=lambda next_obs: next_obs[:, 0] >= limit
    )
    schedule = length if isinstance(length, BPStepScheduler) else constant(length)
    return ModelBasedCollector(env, always_one, memory, schedule, **options)


def constant(value: float) -> BPStepScheduler:
    return BPStepScheduler(0, 1, value, value)


def run(callback: ModelBasedCollector, times: int = 1, start: Tensor = START) -> None:
    for _ in range(times):
        callback.begin_batch(default={"observation": {"obs": start}})


def test_terminal_episodes_restart_within_the_rollout():
    memory = Memory()
    run(collector(memory, length=5, limit=4.0))
    # from 0: 4 steps, then 1; from 1: 3 + 2; from 2: 2 + 2 + 1. Always 5 transitions per env.
    assert sorted(memory.finished) == sorted([4, 1, 3, 2, 2, 2, 1])
    assert memory.open == {}


def test_rollout_length_is_logged_and_makes_room():
    memory = Memory()
    callback = collector(memory, BPStepScheduler(1, 3, 1, 3), num_bp_to_retain_buffer=10)
    run(callback, times=4)
    assert memory.sizes == [30, 60, 90]  # length * 3 envs * 10 batches
    assert callback.scalar_logs["training/model_rollout_length"] == 3
    assert memory.finished == [1] * 3 + [2] * 3 + [3] * 6


def test_collect_interval_skips_batches():
    memory = Memory()
    run(collector(memory, 2, collect_interval=3), times=7)
    assert len(memory.finished) == 3 * 3  # batches 1, 4 and 7


def test_resumed_collector_continues_schedule_and_ids():
    schedule = BPStepScheduler(1, 4, 1, 4)
    memory = Memory()
    callback = collector(memory, schedule)
    run(callback, times=2)
    state = callback.state_dict()
    other_memory = Memory()
    other = collector(other_memory, schedule)
    other.load_state_dict(state)
    run(other)
    run(callback)
    assert other.len_rollout == callback.len_rollout == 3
    assert other.model_env.state_dict()["next_id"] == callback.model_env.state_dict()["next_id"]
    untouched = collector(Memory(), schedule)
    untouched.load_state_dict(state, load_hparams=False)
    run(untouched)
    assert untouched.len_rollout == 1


class Loader:
    """Counts its batches; ends after ``length`` of them."""

    def __init__(self, length: int = 100, ready: bool = True, group: str = "rl_buffer") -> None:
        self.length = length
        self.ready = ready
        self.group = group

    def is_ready(self) -> bool:
        return self.ready

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number in range(self.length):
            yield {self.group: {"actions": torch.tensor([-1.0 - number])}, "batch_size": 7}


REAL: dict[str, Any] = {
    "actions": torch.tensor([1.0, 2.0]),
    "observation": {"obs": torch.tensor([3.0])},
    "batch_size": 2,
}


def sampler(probability: float | BPStepScheduler, **options: Any) -> BatchSampler:
    schedule = probability if isinstance(probability, BPStepScheduler) else constant(probability)
    return BatchSampler(options.pop("loader", Loader()), schedule, **options)


def test_probability_one_takes_model_batches_with_their_size():
    result = sampler(1.0).begin_batch(default=REAL, batch_size=2)
    assert result["rl_buffer"]["actions"].item() == -1.0
    assert result["batch_size"] == 7


def test_real_batches_are_copies():
    result = sampler(0.0).begin_batch(default=REAL, batch_size=2)
    assert set(result) == {"rl_buffer"}
    copied = result["rl_buffer"]
    copied["actions"].mul_(0.0)
    copied["observation"]["obs"].mul_(0.0)
    copied["q_target"] = torch.zeros(1)
    assert copied["batch_size"] == 2
    assert REAL["actions"].tolist() == [1.0, 2.0]
    assert REAL["observation"]["obs"].tolist() == [3.0]
    assert set(REAL) == {"actions", "observation", "batch_size"}


def test_share_of_model_batches_is_the_probability():
    callback = sampler(0.3)
    for _ in range(2000):
        callback.begin_batch(default=REAL)
    taken = sum("batch_size" in callback.begin_batch(default=REAL) for _ in range(2000))
    assert taken / 2000 == pytest.approx(0.3, abs=0.035)


def test_nothing_is_taken_from_a_loader_that_is_not_ready():
    loader = Loader(ready=False)
    callback = sampler(1.0, loader=loader)
    assert "batch_size" not in callback.begin_batch(default=REAL)
    loader.ready = True
    assert "batch_size" in callback.begin_batch(default=REAL)


def test_probability_follows_the_schedule_and_is_logged():
    callback = sampler(BPStepScheduler(0, 4, 0.0, 1.0))
    for expected in (0.25, 0.5, 0.75):
        callback.begin_batch(default=REAL)
        assert callback.scalar_logs["training/prob_sampling_from_model"] == expected


def test_exhausted_loader_starts_again():
    callback = sampler(1.0, loader=Loader(length=2))
    taken = [callback.sample_model_batch()["rl_buffer"]["actions"].item() for _ in range(5)]
    assert taken == [-1.0, -2.0, -1.0, -2.0, -1.0]


class Recorder(Callback):
    """Notes what a policy's loss would learn from."""

    def __init__(self) -> None:
        super().__init__()
        self.data_group = "policy"
        self.seen: list[float] = []

    def backward(self, actions: Tensor) -> None:
        self.seen += actions.tolist()


def test_sampler_feeds_losses_through_the_trainer():
    callback = sampler(1.0, rl_data_group="policy", loader=Loader(group="policy"))
    recorder = Recorder()
    batch = {"default": REAL, "batch_size": 2}
    Trainer([callback, recorder], [batch, batch]).train()
    assert recorder.seen == [-1.0, -2.0]


def test_resumed_sampler_draws_the_same_choices():
    callback = sampler(0.5, generator=torch.Generator().manual_seed(3))
    for _ in range(5):
        callback.begin_batch(default=REAL)
    other = sampler(0.5)
    other.load_state_dict(callback.state_dict())
    draws = [[c.use_model_batch() for _ in range(20)] for c in (callback, other)]
    assert draws[0] == draws[1]
    state = callback.state_dict()
    del state["generator"]
    with pytest.raises(CheckpointKeyError, match="generator"):
        other.load_state_dict(state)
    plain = sampler(0.5)
    plain.load_state_dict(callback.state_dict(), load_hparams=False)
    assert plain.state_dict()["batches"] == 0
