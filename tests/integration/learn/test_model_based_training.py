"""Model-based training with the real memory, collector, trainer and checkpoints."""

import math
from collections.abc import Sequence
from pathlib import Path
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
from cadenza.learn import Callback, Trainer
from cadenza.learn.algorithms.sac import AlphaLoss, PolicyLoss, QLoss, QTarget
from cadenza.learn.callbacks import BackPropStepsTerminator, Checkpointer, CheckpointLoader
from cadenza.learn.collectors.sync import SimpleGymCollector
from cadenza.learn.env.dict_gym_wrapper import DictGymWrapper
from cadenza.learn.env.hit_the_middle import HitTheMiddle
from cadenza.learn.env.replayable import ReplayableEnv
from cadenza.learn.memory import MemoryLoader, MemoryTableProxy
from cadenza.learn.memory.builder import DictObsMemoryTable
from cadenza.learn.models import (
    BatchSampler,
    DynamicModel,
    EnsembleOfGaussian,
    HoldOut,
    LossProgressCheck,
    ModelBasedCollector,
    ModelEnv,
    ModelLoss,
    TerminationModel,
)
from cadenza.learn.nn.action_value_mlp import ActionValueMlp
from cadenza.learn.nn.gaussian_policy import GaussianMlpPolicy
from cadenza.learn.proxies import GenericAgentProxy

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


def never(next_obs: Tensor) -> Tensor:
    return torch.zeros(len(next_obs), dtype=torch.bool)


def rising(observations: dict[int, DictObservation]) -> dict[int, DictResponse]:
    return {a: DictResponse({"actions": [0.1 * (a % 7)]}, {}) for a in observations}


def simulated_memory(maxlen: int = 10_000) -> MemoryTableProxy:
    table = DictObsMemoryTable(spaces=SPACES, use_terminal_column=True, maxlen=maxlen, device="cpu")
    return MemoryTableProxy(table, use_terminal=True, name="simulated")


def test_one_rollout_fills_the_memory_with_the_models_outcomes():
    """Rollouts of 5 from a batch of 10: 50 transitions, each as the model says."""
    memory = simulated_memory()
    collector = ModelBasedCollector(
        ModelEnv(num_envs=10, model=Linear(), termination_fn=never),
        rising,
        memory,
        BPStepScheduler(0, 1, 5, 5),
        100,
    )
    start = torch.randn(10, 2, generator=torch.Generator().manual_seed(0))
    Trainer([collector], [{"default": {"observation": {"obs": start}}, "batch_size": 10}]).train()
    assert memory.size() == 50
    batch = memory.memory_table.sample(200, 1)
    obs, following = batch["observation"]["obs"], batch["next_observation"]["obs"]
    torch.testing.assert_close(following, 0.5 * obs + batch["actions"])
    torch.testing.assert_close(batch["rewards"], following.sum(dim=1, keepdim=True))
    assert torch.equal(batch["masks"], torch.ones(200, 1))  # rollouts are interrupted, not over


def test_twenty_rollouts_leave_no_episode_open():
    memory = simulated_memory()
    collector = ModelBasedCollector(
        ModelEnv(num_envs=10, model=Linear(), termination_fn=lambda next_obs: next_obs[:, 0] > 0.5),
        rising,
        memory,
        BPStepScheduler(0, 20, 5, 1),
        100,
    )
    batch = {"default": {"observation": {"obs": torch.ones(10, 2)}}, "batch_size": 10}
    Trainer([collector], [batch] * 20).train()
    assert memory.state_dict()["open"] == []
    lengths = [int(BPStepScheduler(0, 20, 5, 1).evaluate_at(step)) for step in range(1, 21)]
    assert memory.size() == 10 * sum(lengths)


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
@pytest.mark.parametrize("propagation", ["average", "random"])
def test_an_ensemble_of_five_learns_the_task_in_five_hundred_batches(propagation: Any):
    """The check ends training by itself: as a success, or with LossProgressError."""
    env = vector_env(seed=0, count=10)
    table = DictObsMemoryTable(spaces=env.dict_space, maxlen=4_000, device="cpu")
    policy = GaussianMlpPolicy(2, 1, [10, 10])
    acting = GenericAgentProxy(policy, "cpu", ("obs",), ("actions",), mode="sample")
    model = DynamicModel(
        model=EnsembleOfGaussian(
            in_size=3, out_size=3, device="cpu", ensemble_size=5, propagation=propagation
        )
    )
    loss = ModelLoss(model=model, opt=Adam(model.parameters(), 1e-3))
    check = LossProgressCheck(model, num_bp=500)
    collector = SimpleGymCollector(env, acting, MemoryTableProxy(table), False, warmup_steps=400)
    trainer = Trainer([loss, check, collector], MemoryLoader(table, 200, 1, "batch_size"))
    trainer.train()
    assert trainer.state["bp_step"] == 500
    assert check.scalar_logs["mbrl/obs_pred_err"] < 1.0


class Setup:
    """Everything of a small model-based training on HitTheMiddle."""

    def __init__(self, root: Path, seed: int = 3) -> None:
        weights = torch.Generator().manual_seed(seed)
        env = vector_env(seed, 4)
        self.real = MemoryTableProxy(
            DictObsMemoryTable(
                spaces=env.dict_space,
                use_terminal_column=True,
                maxlen=600,
                device="cpu",
                seed=seed,
            ),
            use_terminal=True,
            name="real",
        )
        self.simulated = simulated_memory(maxlen=100)
        self.policy = GaussianMlpPolicy(2, 1, [8], init_generator=weights)
        self.critics = [ActionValueMlp(2, 1, [8], generator=weights) for _ in "12"]
        acting = GenericAgentProxy(self.policy, "cpu", ("obs",), ("actions",), mode="sample")
        ensemble = EnsembleOfGaussian(
            in_size=3,
            out_size=3,
            device="cpu",
            ensemble_size=3,
            hidden_size=8,
            num_layers=1,
            propagation="random",
            num_elites=2,
            bootstrap=True,
            seed=seed,
        )
        self.model = DynamicModel(
            model=ensemble, termination_model=TerminationModel(in_size=5, device="cpu")
        )
        ln_alpha = torch.tensor([math.log(0.1)], requires_grad=True)
        group = {"data_group": "rl_buffer"}
        self.callbacks: list[Callback] = [
            SimpleGymCollector(env, acting, self.real, False, 40, bp_steps_per_inf=2),
            ModelLoss(
                model=self.model,
                opt=Adam(self.model.parameters(), 1e-3),
                hold_out=HoldOut(interval=3, patience=1, rest=4, fraction=0.2),
            ),
            ModelBasedCollector(
                ModelEnv(num_envs=16, model=self.model, fixed_members=True),
                acting,
                self.simulated,
                BPStepScheduler(0, 30, 1, 4),
                5,
            ),
            BatchSampler(
                MemoryLoader(self.simulated.memory_table, 16, 1, "batch_size", "rl_buffer"),
                BPStepScheduler(0, 10, 0.0, 0.6),
            ),
            *(
                QLoss(name=f"q{i}", q=q, opt=Adam(q.parameters(), 1e-3), **group)
                for i, q in enumerate(self.critics)
            ),
            PolicyLoss(
                pi=self.policy,
                ln_alpha=ln_alpha,
                q=self.critics[0],
                q2=self.critics[1],
                opt=Adam(self.policy.parameters(), 1e-3),
                **group,
            ),
            AlphaLoss(
                pi=self.policy, ln_alpha=ln_alpha, opt=Adam([ln_alpha], 1e-3), n_actions=1, **group
            ),
            QTarget(
                pi=self.policy,
                ln_alpha=ln_alpha,
                q1=self.critics[0],
                q2=self.critics[1],
                use_terminal_masking=True,
                **group,
            ),
        ]
        self.root = root

    def restorees(self) -> list[Any]:
        return [*self.callbacks, self.real, self.simulated]

    def train(self, until: int, extra: Sequence[Callback] = ()) -> None:
        trainer = Trainer(
            [*self.callbacks, *extra, BackPropStepsTerminator(until)],
            MemoryLoader(self.real.memory_table, 16, 1, "batch_size"),
        )
        trainer.train()

    def saver(self) -> Checkpointer:
        return Checkpointer(restorees=self.restorees(), run_root=self.root, checkpoint_interval=20)

    def loader(self) -> CheckpointLoader:
        return CheckpointLoader(restorees=self.restorees(), run_root=self.root, checkpoint_index=0)

    def parameters(self) -> dict[str, Tensor]:
        parts = {"model": self.model, "policy": self.policy}
        parts |= {f"q{i}": q for i, q in enumerate(self.critics)}
        return {
            f"{name}.{key}": value
            for name, part in parts.items()
            for key, value in part.state_dict().items()
        }


def test_resumed_model_based_training_equals_an_unbroken_one(tmp_path: Path):
    """Model, normalisers, elites, hold-out, simulator, memories, sampler, policy: all go on."""
    whole = Setup(tmp_path / "whole")
    whole.train(40)
    first = Setup(tmp_path / "half")
    first.train(20, [first.saver()])
    resumed = Setup(tmp_path / "half")
    resumed.train(40, [resumed.loader()])
    expected = whole.parameters()
    for name, value in resumed.parameters().items():
        assert torch.equal(value, expected[name]), name
    assert resumed.simulated.size() == whole.simulated.size() > 0
    assert resumed.real.size() == whole.real.size()
    logs = [
        dict(callback.scalar_logs.items())
        for setup in (whole, resumed)
        for callback in setup.callbacks
        if isinstance(callback, BatchSampler | ModelLoss | ModelBasedCollector)
    ]
    assert logs[:3] == logs[3:]
