"""A training that can be killed at any moment: ``python -m ... ALGORITHM FOLDER STEPS PACE_S``.

It goes on from the newest checkpoint in FOLDER and trains until STEPS. At the end it writes
``digest.json``: one SHA-256 for the complete state of each part. PACE_S is slept in every step, so
that there is time to kill it; it changes no number. A run with a pace does not end: in its last
step it writes the empty file ``waits`` and waits to be killed.
"""

import hashlib
import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import torch
from gymnasium.vector import SyncVectorEnv
from torch.optim import Adam

from cadenza import PPO, DAgger
from cadenza.core.files import atomic_write_bytes, atomic_write_json
from cadenza.core.payloads import deserialise, serialise
from cadenza.core.schedules import BPStepScheduler, LinearSchedule
from cadenza.core.spaces import MDPSpace
from cadenza.learn import Callback, Trainer
from cadenza.learn.algorithms import dqn
from cadenza.learn.algorithms.dqn import EpsilonGreedyPolicy, EpsilonSchedule
from cadenza.learn.algorithms.sac import AlphaLoss, PolicyLoss, QLoss, QTarget
from cadenza.learn.callbacks import BackPropStepsTerminator, Checkpointer, CheckpointLoader
from cadenza.learn.collectors import SimpleGymCollector
from cadenza.learn.env import DictGymWrapper, ReplayableEnv
from cadenza.learn.memory import MemoryLoader, MemoryTableProxy
from cadenza.learn.memory.builder import DictObsMemoryTable
from cadenza.learn.models import (
    BatchSampler,
    DynamicModel,
    EnsembleOfGaussian,
    ModelBasedCollector,
    ModelEnv,
    ModelLoss,
    TerminationModel,
)
from cadenza.learn.nn import ActionValueMlp, GaussianMlpPolicy
from cadenza.learn.nn.action_value_mlp import DiscreteQMlp
from cadenza.learn.proxies import GenericAgentProxy

#: Training steps (updates, for PPO) from one checkpoint to the next, and updates of a round.
INTERVAL = 20
BATCH = 32
HIDDEN = [24, 24]
#: Where the newest checkpoint of PPO or DAgger is; the others use the engine's `Checkpointer`.
PPO_FILE = "ppo.pt"


#: File of a run that is in its last step and waits to be killed.
WAITS = "waits"
#: How long it waits at most, so that it does not outlive a broken test for ever, s.
WAIT_S = 800.0


def pace(folder: Path, seconds: float, *, is_last: bool) -> None:
    """Sleep in one step of a run that is to be killed."""
    if seconds > 0.0 and is_last:
        (folder / WAITS).touch()
        time.sleep(WAIT_S)
    time.sleep(seconds)


class Pace(Callback):
    """Sleeps in every step, as `pace` does."""

    def __init__(self, folder: Path, seconds: float, steps: int) -> None:
        super().__init__()
        self.folder = folder
        self.seconds = seconds
        self.steps = steps

    def begin_batch(self, bp_step: int) -> None:
        pace(self.folder, self.seconds, is_last=bp_step == self.steps)


def rng(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def environments(env_id: str, count: int, mode: str, **kwargs: Any) -> DictGymWrapper:
    """Return environments whose short episodes end both ways."""

    def maker(index: int) -> Callable[[], Any]:
        return lambda: ReplayableEnv(gymnasium.make(env_id, **kwargs), root_seed=7, index=index)

    return DictGymWrapper(SyncVectorEnv([maker(i) for i in range(count)], autoreset_mode=mode))


def memory(space: MDPSpace, maxlen: int, name: str, seed: int) -> MemoryTableProxy:
    table = DictObsMemoryTable(
        spaces=space, use_terminal_column=True, maxlen=maxlen, device="cpu", seed=seed
    )
    return MemoryTableProxy(table, use_terminal=True, name=name)


def train(
    folder: Path,
    steps: int,
    callbacks: list[Callback],
    memories: list[MemoryTableProxy],
    pace_s: float,
) -> dict[str, str]:
    """Train from the newest checkpoint and return the digest of every part."""
    restorees: list[Any] = [*callbacks, *memories]
    loader = CheckpointLoader(
        restorees=restorees, run_root=folder, checkpoint_index="latest", missing_ok=True
    )
    saver = Checkpointer(
        restorees=restorees,
        run_root=folder,
        checkpoint_interval=INTERVAL,
        checkpoint_index="latest",
        keep_last=3,
    )
    data = MemoryLoader(memories[0].memory_table, BATCH, 1, "batch_size")
    trainer = Trainer(
        [loader, *callbacks, saver, BackPropStepsTerminator(steps), Pace(folder, pace_s, steps)],
        data,
    )
    trainer.train()
    counters = {key: trainer.state[key] for key in ("bp_step", "bp_samples", "inf_step")}
    assert counters["bp_step"] == steps
    return digests({part.name: part.state_dict() for part in restorees} | {"counters": counters})


def digests(states: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    return {name: hashlib.sha256(serialise(state)).hexdigest() for name, state in states.items()}


def train_dqn(folder: Path, steps: int, pace_s: float) -> dict[str, str]:
    env = environments("CartPole-v1", 2, "NextStep", max_episode_steps=30)
    q_net = DiscreteQMlp(4, 2, HIDDEN, dueling=True, generator=rng(0))
    policy = EpsilonGreedyPolicy(q_net, epsilon=1.0, generator=rng(1))
    agent = GenericAgentProxy(policy, "cpu", ("obs",), ("actions",), False, env.dict_space)
    proxy = memory(env.dict_space, 300, "memory", 3)
    optimizer = Adam(q_net.parameters(), 1e-3)
    callbacks: list[Callback] = [
        EpsilonSchedule(policy, LinearSchedule(1.0, 0.1, steps)),
        SimpleGymCollector(env, agent, proxy, False, warmup_steps=60, bp_steps_per_inf=2),
        dqn.QTarget(q_net=q_net, double=True, target_q_tau=1.0, target_period=30),
        dqn.QLoss(
            name="q",
            q=q_net,
            opt=optimizer,
            lr_schedule=torch.optim.lr_scheduler.StepLR(optimizer, 50, 0.9),
            huber_delta=1.0,
        ),
    ]
    return train(folder, steps, callbacks, [proxy], pace_s)


def soft_actor_critic(group: str) -> tuple[GaussianMlpPolicy, list[Callback]]:
    """Return policy and callbacks for Pendulum."""
    weights = rng(0)
    policy = GaussianMlpPolicy(3, 1, HIDDEN, generator=rng(1), init_generator=weights)
    q1, q2 = (ActionValueMlp(3, 1, HIDDEN, generator=weights) for _ in range(2))
    ln_alpha = torch.tensor([math.log(0.2)], requires_grad=True)
    losses: list[Callback] = [
        QLoss(name="q1", q=q1, opt=Adam(q1.parameters(), 1e-3), data_group=group),
        QLoss(name="q2", q=q2, opt=Adam(q2.parameters(), 1e-3), data_group=group),
        PolicyLoss(
            pi=policy,
            ln_alpha=ln_alpha,
            q=q1,
            q2=q2,
            opt=Adam(policy.parameters(), 1e-3),
            data_group=group,
        ),
        AlphaLoss(
            pi=policy,
            ln_alpha=ln_alpha,
            opt=Adam([ln_alpha], 1e-3),
            n_actions=1,
            max_alpha=10.0,
            data_group=group,
        ),
        QTarget(
            pi=policy, ln_alpha=ln_alpha, q1=q1, q2=q2, use_terminal_masking=True, data_group=group
        ),
    ]
    return policy, losses


def train_sac(folder: Path, steps: int, pace_s: float) -> dict[str, str]:
    env = environments("Pendulum-v1", 3, "SameStep", max_episode_steps=23)
    policy, losses = soft_actor_critic("default")
    agent = GenericAgentProxy(policy, "cpu", ("obs",), ("actions",), spaces=env.dict_space)
    proxy = memory(env.dict_space, 400, "memory", 3)
    collector = SimpleGymCollector(env, agent, proxy, False, warmup_steps=40, bp_steps_per_inf=2)
    return train(folder, steps, [collector, *losses], [proxy], pace_s)


def train_model_based(folder: Path, steps: int, pace_s: float) -> dict[str, str]:
    env = environments("Pendulum-v1", 2, "Disabled", max_episode_steps=23)
    policy, losses = soft_actor_critic("rl_buffer")
    agent = GenericAgentProxy(policy, "cpu", ("obs",), ("actions",), spaces=env.dict_space)
    real = memory(env.dict_space, 400, "real", 3)
    simulated = memory(env.dict_space, BATCH * 10, "simulated", 4)
    ensemble = EnsembleOfGaussian(
        in_size=4,
        out_size=4,
        device="cpu",
        num_layers=2,
        ensemble_size=3,
        hidden_size=16,
        propagation="random",
        bootstrap=True,
        seed=5,
    )
    ends = TerminationModel(in_size=7, device="cpu", seed=6)
    model = DynamicModel(model=ensemble, termination_model=ends)
    batches = MemoryLoader(simulated.memory_table, BATCH, 1, "batch_size", "rl_buffer")
    callbacks: list[Callback] = [
        SimpleGymCollector(env, agent, real, False, warmup_steps=60, bp_steps_per_inf=2),
        ModelLoss(model=model, opt=Adam(model.parameters(), 1e-3)),
        ModelBasedCollector(
            ModelEnv(num_envs=BATCH, model=model, generator=rng(8)),
            agent,
            simulated,
            BPStepScheduler(0, steps, 1, 3),
            num_bp_to_retain_buffer=10,
            collect_interval=7,
        ),
        BatchSampler(batches, BPStepScheduler(0, steps, 0.2, 0.9), generator=rng(9)),
        *losses,
    ]
    return train(folder, steps, callbacks, [real, simulated], pace_s)


class AfterUpdate(Callback):
    """Waits after every update, then saves."""

    def __init__(self, wait: Callable[[], None], save: Callable[[], None]) -> None:
        super().__init__()
        self.wait, self.save = wait, save

    def end_batch(self) -> None:
        self.wait()
        self.save()


def train_ppo(folder: Path, steps: int, pace_s: float) -> dict[str, str]:
    """Train PPO, saving after every update, in the middle of episodes."""
    env = environments("CartPole-v1", 3, "SameStep", max_episode_steps=40)
    rollout = 16
    ppo = PPO(
        env.vector_env,
        seed=2,
        rollout_length=rollout,
        batch_size=24,
        epochs=2,
        hidden_sizes=(16, 16),
        normalize_observations=True,
        normalize_rewards=True,
        decay_learning_rate=True,
    )
    file = folder / PPO_FILE
    if file.exists():
        ppo.load_state_dict(deserialise(file.read_bytes(), max_bytes=2**28))
    total = steps * rollout * env.num_envs
    watch = AfterUpdate(
        lambda: pace(folder, pace_s, is_last=ppo.steps >= total),
        lambda: atomic_write_bytes(file, serialise(ppo.state_dict())),
    )
    if ppo.steps < total:
        ppo.learn(total - ppo.steps, callbacks=[watch], progress=False)
    assert (ppo.steps, ppo.updates) == (total, steps)
    return digests({"ppo": ppo.state_dict()})


def train_dagger(folder: Path, steps: int, pace_s: float) -> dict[str, str]:
    """Imitate a law of the observation, saving after every round, in the middle of episodes."""
    agent = DAgger(
        "Pendulum-v1",
        expert=lambda seen: -seen[:, 1:2],
        seed=2,
        num_envs=3,
        round_length=30,
        updates=INTERVAL,
        batch_size=24,
        hidden_sizes=(16, 16),
    )
    file = folder / PPO_FILE
    if file.exists():
        agent.load_state_dict(deserialise(file.read_bytes(), max_bytes=2**28))
    total = steps // INTERVAL * 3 * 30

    def save() -> None:
        if agent.updates % INTERVAL == 0:
            atomic_write_bytes(file, serialise(agent.state_dict()))

    watch = AfterUpdate(lambda: pace(folder, pace_s, is_last=agent.updates >= steps), save)
    if agent.steps < total:
        agent.learn(total - agent.steps, callbacks=[watch], progress=False)
    assert (agent.steps, agent.updates) == (total, steps)
    return digests({"dagger": agent.state_dict()})


ALGORITHMS: dict[str, Callable[[Path, int, float], dict[str, str]]] = {
    "dqn": train_dqn,
    "sac": train_sac,
    "ppo": train_ppo,
    "dagger": train_dagger,
    "model_based": train_model_based,
}


def main(words: Iterable[str]) -> None:
    algorithm, folder, steps, pace_s = words
    root = Path(folder)
    root.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    result = ALGORITHMS[algorithm](root, int(steps), float(pace_s))
    atomic_write_json(root / "digest.json", json.loads(json.dumps(result)))


if __name__ == "__main__":
    main(sys.argv[1:])
