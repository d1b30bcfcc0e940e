import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cadenza.core.schedules import BPStepScheduler
from cadenza.core.spaces import BoxSpace, DictSpace, MDPSpace
from cadenza.core.types import DictObservation, DictResponse
from cadenza.learn.memory import MemoryTableProxy
from cadenza.learn.memory.builder import DictObsMemoryTable
from cadenza.learn.models import EnsembleOfGaussian, HoldOut, ModelBasedCollector, ModelEnv

SPACES = MDPSpace(
    rewards=None,
    actions=BoxSpace(np.dtype(np.float32), (1,)),
    state=DictSpace({"obs": BoxSpace(np.dtype(np.float32), (1,))}),
)


class Counting:
    """next = obs + 1, whatever is done."""

    device = torch.device("cpu")

    def sample(
        self, action: Tensor, observation: Tensor, rng: torch.Generator
    ) -> tuple[Tensor, Tensor | None]:
        return observation + 1.0, action


def idle(observations: dict[int, DictObservation]) -> dict[int, DictResponse]:
    return {agent: DictResponse({"actions": [0.0]}, {}) for agent in observations}


@settings(deadline=None)  # the first call of a torch kernel is slow
@given(
    envs=st.integers(1, 4),
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=4),
    ends=st.lists(st.booleans(), min_size=50, max_size=50),
)
def test_rollouts_store_every_step_once_and_close_every_episode(
    envs: int, lengths: list[int], ends: list[bool]
):
    flags = iter(ends * 20)
    memory = MemoryTableProxy(
        DictObsMemoryTable(spaces=SPACES, use_terminal_column=True, maxlen=1_000, device="cpu"),
        use_terminal=True,
    )
    collector = ModelBasedCollector(
        ModelEnv(
            num_envs=envs,
            model=Counting(),
            termination_fn=lambda obs: torch.tensor([next(flags) for _ in range(len(obs))]),
        ),
        idle,
        memory,
        BPStepScheduler(0, 1, 0, 0),
        1_000,
    )
    start = torch.arange(float(envs)).unsqueeze(1) * 100.0
    for length in lengths:
        collector.rollout_scheduler = BPStepScheduler(0, 1, length, length)
        collector.begin_batch(default={"observation": {"obs": start}})
    assert memory.state_dict()["open"] == []
    assert memory.size() == envs * sum(lengths)
    if memory.size() > 0:
        batch = memory.memory_table.sample(32, 1)
        obs, following = batch["observation"]["obs"], batch["next_observation"]["obs"]
        assert torch.equal(following, obs + 1.0)
        # every state can be reached from a start within one rollout
        assert bool((obs % 100.0 < max(lengths)).all())


@settings(deadline=None)  # the first call of a torch kernel is slow
@given(members=st.lists(st.integers(0, 3), min_size=1, max_size=20))
def test_each_row_is_predicted_by_its_member(members: list[int]):
    model = EnsembleOfGaussian(
        in_size=2,
        out_size=2,
        device="cpu",
        ensemble_size=4,
        hidden_size=5,
        num_layers=1,
        deterministic=True,
    )
    rows = torch.randn(len(members), 2, generator=torch.Generator().manual_seed(0))
    chosen = torch.tensor(members)
    every, _ = model.default_forward(rows)
    expected = every[chosen, torch.arange(len(members))]
    torch.testing.assert_close(model.sample(rows, torch.Generator(), chosen), expected)


@settings(deadline=None)  # the first call of a torch kernel is slow
@given(
    batches=st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=10), max_size=8),
    capacity=st.integers(1, 20),
)
def test_hold_out_keeps_the_newest_distinct_rows(batches: list[list[int]], capacity: int):
    hold_out = HoldOut(fraction=0.5, capacity=capacity)
    held: list[int] = []
    for batch in batches:
        column = torch.tensor(batch, dtype=torch.float32).unsqueeze(1)
        train = hold_out.keep((column, column, column, column))
        assert train.shape == (len(batch),)
        kept = {int(row) for row in hold_out.state_dict()["rows"][0]} if len(hold_out) else set()
        for number, trains in zip(batch, train.tolist(), strict=True):
            if not trains and number not in held:
                held.append(number)
        held = held[-capacity:]
        assert kept == set(held)
    assert len(hold_out) == len(held)
