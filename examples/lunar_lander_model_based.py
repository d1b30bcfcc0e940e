"""Model-based soft actor-critic on LunarLanderContinuous-v3: MBPO with this engine's callbacks.

    python examples/lunar_lander_model_based.py --steps 15000

One gradient step per environment step. Five Gaussian networks learn the change of the observation,
the reward and whether the episode ends; each from its own resampled data, early-stopped on held-out
transitions; the four best of them simulate. Rollouts start from every real batch, one step long at
first and three in the end, and the share of simulated batches rises to one half meanwhile.
Needs `pip install 'cadenza[box2d]'`.
"""

from typing import Any

import gymnasium
from actor_critic import ActorCritic
from harness import Run, evaluate_policy, main
from off_policy import CurveReporter, EpisodeReturns, greedy, make_envs, torch_generator
from torch.optim import Adam

from cadenza.core.schedules import BPStepScheduler
from cadenza.core.spaces import MDPSpace
from cadenza.learn import Trainer
from cadenza.learn.callbacks.generic import BackPropStepsTerminator
from cadenza.learn.collectors.sync import SimpleGymCollector
from cadenza.learn.memory import MemoryLoader, MemoryTableProxy
from cadenza.learn.memory.builder import DictObsMemoryTable
from cadenza.learn.models import (
    BatchSampler,
    DynamicModel,
    EnsembleOfGaussian,
    HoldOut,
    ModelBasedCollector,
    ModelEnv,
    ModelLoss,
    TerminationModel,
)
from cadenza.learn.proxies import GenericAgentProxy

ENV_ID = "LunarLanderContinuous-v3"
OBS, ACTIONS = 8, 2
#: The contacts of the legs are 0 or 1: the model predicts them, not their change.
LEGS = [6, 7]
NUM_ENVS = 4
BATCH = 256
WARMUP_STEPS = 1_000
#: Batches between rollouts, and how many rollouts the simulated memory holds.
COLLECT_INTERVAL = 20
RETAINED_ROLLOUTS = 50


def make_lander() -> gymnasium.Env[Any, Any]:
    """Return the task."""
    return gymnasium.make(ENV_ID)


def dynamics(seed: int) -> DynamicModel:
    """Return the model of the lander."""
    ensemble = EnsembleOfGaussian(
        in_size=OBS + ACTIONS,
        out_size=OBS + 1,
        device="cpu",
        ensemble_size=5,
        num_elites=4,
        num_layers=3,
        hidden_size=128,
        propagation="random",
        bootstrap=True,
        seed=seed,
    )
    ends = TerminationModel(in_size=2 * OBS + ACTIONS, device="cpu", seed=seed)
    return DynamicModel(model=ensemble, no_delta_list=LEGS, termination_model=ends)


def table(env_space: MDPSpace, maxlen: int, seed: int) -> MemoryTableProxy:
    """Return a memory that knows terminal from interrupted ends."""
    memory = DictObsMemoryTable(
        spaces=env_space, use_terminal_column=True, maxlen=maxlen, device="cpu", seed=seed
    )
    return MemoryTableProxy(memory, use_terminal=True, name=f"memory_{maxlen}")


def train(run: Run) -> None:
    """Train one seed and evaluate it greedily."""
    batch = 32 if run.smoke else BATCH
    warmup = 800 if run.smoke else WARMUP_STEPS  # the memory holds finished episodes only
    updates = run.steps - warmup
    env = make_envs(make_lander, NUM_ENVS, run.seed)
    agent = ActorCritic(OBS, ACTIONS, run.seed, data_group="rl_buffer")
    acting = GenericAgentProxy(agent.policy, "cpu", ("obs",), ("actions",), mode="sample")
    real = table(env.dict_space, run.steps + 1, run.seed)
    noted = EpisodeReturns(real)
    simulated = table(env.dict_space, batch * RETAINED_ROLLOUTS, run.seed + 1)
    model = dynamics(run.seed)
    collector = SimpleGymCollector(
        env, acting, noted, render=False, warmup_steps=warmup // NUM_ENVS, bp_steps_per_inf=NUM_ENVS
    )
    growing = BPStepScheduler(updates / 10, updates, 1, 3)
    callbacks = [
        collector,
        ModelLoss(
            model=model,
            opt=Adam(model.parameters(), 1e-3),
            hold_out=HoldOut(interval=50, patience=5, rest=250, seed=run.seed),
        ),
        ModelBasedCollector(
            ModelEnv(num_envs=batch, model=model, generator=torch_generator("model", run.seed)),
            acting,
            simulated,
            growing,
            RETAINED_ROLLOUTS,
            collect_interval=COLLECT_INTERVAL,
        ),
        BatchSampler(
            MemoryLoader(simulated.memory_table, batch, 1, "batch_size", "rl_buffer"),
            BPStepScheduler(updates / 10, updates / 2, 0.0, 0.5),
            generator=torch_generator("choice", run.seed),
        ),
        *agent.callbacks,
        CurveReporter(run, noted, max(1, updates // 50)),
        BackPropStepsTerminator(updates),
    ]
    Trainer(callbacks, MemoryLoader(real.memory_table, batch, 1, "batch_size")).train()
    returns = evaluate_policy(
        greedy(agent.policy, make_lander), ENV_ID, run.evaluation_episodes, run.seed
    )
    run.finish(returns, env_steps=collector.inf_step, updates=updates)


if __name__ == "__main__":
    main(
        train,
        name="lunar_lander_model_based",
        steps=15_000,
        smoke_steps=880,
        evaluation_episodes=20,
    )
