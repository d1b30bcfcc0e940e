"""Model-based training with the real memory, collector, trainer and checkpoints."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor
from torch.optim import Adam

from cadenza.core.schedules import BPStepScheduler
from cadenza.core.spaces import BoxSpace, DictSpace, MDPSpace
from cadenza.core.types import DictObservation, DictResponse
from cadenza.learn import Trainer
from cadenza.learn.collectors.sync import SimpleGymCollector
from cadenza.learn.env.dict_gym_wrapper import DictGymWrapper
from cadenza.learn.env.hit_the_middle import HitTheMiddle
from cadenza.learn.env.stepping import ReplayableEnv
from cadenza.learn.memory import MemoryLoader, MemoryTableProxy
from cadenza.learn.memory.builder import DictObsMemoryTable
from cadenza.learn.models import (
    DynamicModel,
    EnsembleOfGaussian,
    LossProgressCheck,
    ModelBasedCollector,
    ModelEnv,
    ModelLoss,
)
from cadenza.learn.nn.gaussian_policy import GaussianMlpPolicy
from cadenza.learn.proxies import GenericAgentProxy
from tests.campaigns import size

SPACES = MDPSpace(
    rewards=None,
    actions=BoxSpace(np.dtype(np.float32), (1,)),
    state=DictSpace({"obs": BoxSpace(np.dtype(np.float32), (2,))}),
)


class Linear:
    """A fake model with a known outcome: next = 0.5 obs + action, reward = sum of next."""

    device = torch.device("cpu")

    def sample(
        self, action: Tensor, observation: Tensor, rng: torch.Generator
    ) -> tuple[Tensor, Tensor | None]:
        following = 0.5 * observation + action
        return following, following.sum(dim=1, keepdim=True)


def rising(observations: dict[int, DictObservation]) -> dict[int, DictResponse]:
    return {a: DictResponse({"actions": [0.1 * (a % 7)]}, {}) for a in observations}


def simulated_memory(maxlen: int = 10_000) -> MemoryTableProxy:
    table = DictObsMemoryTable(spaces=SPACES, use_terminal_column=True, maxlen=maxlen, device="cpu")
    return MemoryTableProxy(table, use_terminal=True, name="simulated")


def test_simulated_ends_reach_the_masks():
    memory = simulated_memory()
    collector = ModelBasedCollector(
        ModelEnv(num_envs=4, model=Linear(), termination_fn=lambda obs: obs[:, 0] > -1.0),
        rising,
        memory,
        BPStepScheduler(0, 1, 3, 3),
        100,
    )
    collector.begin_batch(default={"observation": {"obs": torch.zeros(4, 2)}})
    assert memory.size() == 12
    assert not memory.memory_table.sample(20, 1)["masks"].any()  # every step is terminal


def vector_env(seed: int, count: int) -> DictGymWrapper:
    def maker(index: int) -> Any:
        return lambda: ReplayableEnv(HitTheMiddle(), root_seed=seed, index=index)

    return DictGymWrapper(
        SyncVectorEnv([maker(i) for i in range(count)], autoreset_mode=AutoresetMode.SAME_STEP)
    )


@pytest.mark.slow
@pytest.mark.parametrize("propagation", size(["random"], ["random", "average"]))
def test_an_ensemble_of_five_learns_the_task_in_five_hundred_batches(propagation: Any):
    """The check ends training by itself: as a success, or with LossProgressError."""
    env = vector_env(seed=0, count=10)
    table = DictObsMemoryTable(spaces=env.dict_space, maxlen=4_000, device="cpu")
    policy = GaussianMlpPolicy(2, 1, [10, 10])
    acting = GenericAgentProxy(policy, "cpu", ("obs",), ("actions",), mode="sample")
    model = DynamicModel(
        model=EnsembleOfGaussian(
            in_size=3,
            out_size=3,
            device="cpu",
            ensemble_size=5,
            hidden_size=size(64, 256),
            propagation=propagation,
        )
    )
    loss = ModelLoss(model=model, opt=Adam(model.parameters(), 1e-3))
    check = LossProgressCheck(model, num_bp=500)
    collector = SimpleGymCollector(env, acting, MemoryTableProxy(table), False, warmup_steps=400)
    trainer = Trainer([loss, check, collector], MemoryLoader(table, 200, 1, "batch_size"))
    trainer.train()
    assert trainer.state["bp_step"] == 500
    assert check.scalar_logs["mbrl/obs_pred_err"] < 1.0
