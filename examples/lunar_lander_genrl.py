"""GenRL on LunarLanderContinuous-v3: learn an action space from experience, then act in it.

    python examples/lunar_lander_genrl.py --steps 15000

Three stages. Soft actor-critic collects experience and exports its memory. A variational
auto-encoder learns, from that file, what actions look like given what was observed. Then a fresh
actor-critic learns in the space of the auto-encoder's latents: the frozen decoder turns them into
actions, and the frozen encoder turns the actions that were taken into latents for its memory.
Needs `pip install 'cadenza[box2d]'`.
"""

import json
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from actor_critic import ActorCritic
from harness import Run, evaluate_policy, main
from off_policy import CurveReporter, EpisodeReturns, greedy, make_envs, torch_generator
from torch import Tensor
from torch.optim import Adam

from cadenza.core.files import atomic_write_text
from cadenza.core.spaces import BoxSpace, MDPSpace
from cadenza.learn import Trainer
from cadenza.learn.algorithms.genrl.networks import FullyConnectedDecoder, FullyConnectedEncoder
from cadenza.learn.algorithms.genrl.proxies import MemoryProxyWithEncoder
from cadenza.learn.algorithms.genrl.vae import VAELoss, VariationalAutoencoder
from cadenza.learn.algorithms.genrl.wrappers import DecoderWrapper, EncoderWrapper, PolicyWrapper
from cadenza.learn.callback import Callback
from cadenza.learn.callbacks import Checkpointer, CheckpointLoader
from cadenza.learn.callbacks.generic import BackPropStepsTerminator
from cadenza.learn.collectors.sync import SimpleGymCollector
from cadenza.learn.memory import MemoryImporterCallback, MemoryLoader, MemoryTableProxy
from cadenza.learn.memory.builder import DictObsMemoryTable
from cadenza.learn.memory.table import ArrayMemoryTable
from cadenza.learn.proxies import GenericAgentProxy

ENV_ID = "LunarLanderContinuous-v3"
OBS, ACTIONS, LATENTS = 8, 2, 2
NUM_ENVS = 4
BATCH = 256
WARMUP_STEPS = 1_000
HIDDEN = [128, 128]
LATENT_MULTIPLIER = 3.0
EXPORT_NAME = "sac"


def train(run: Run) -> None:
    """Do the three stages and evaluate the last one greedily."""
    batch = 32 if run.smoke else BATCH
    warmup = 800 if run.smoke else WARMUP_STEPS  # the memory holds finished episodes only
    vae_updates = 50 if run.smoke else 5_000
    first = collect_experience(run, batch, warmup)
    learn_action_space(run, batch, vae_updates)
    policy, collector = act_in_latents(run, batch, warmup)
    returns = evaluate_policy(
        greedy(policy, make_lander), ENV_ID, run.evaluation_episodes, run.seed
    )
    atomic_write_text(
        run.out / "stages.json",
        json.dumps({"actor_critic_returns": first, "latent_returns": returns}, indent=1),
    )
    updates = 2 * (run.steps - warmup) + vae_updates
    run.finish(returns, env_steps=2 * collector.inf_step, updates=updates)


def make_lander() -> gymnasium.Env[Any, Any]:
    """Return the task."""
    return gymnasium.make(ENV_ID)


def collect_experience(run: Run, batch: int, warmup: int) -> list[float]:
    """Train plain soft actor-critic, export its memory and return its evaluation returns."""
    env = make_envs(make_lander, NUM_ENVS, run.seed)
    table = memory_table(env.dict_space, run)
    memory = MemoryTableProxy(table, use_terminal=True)
    agent = ActorCritic(OBS, ACTIONS, run.seed)
    acting = GenericAgentProxy(agent.policy, "cpu", ("obs",), ("actions",), mode="sample")
    collector = SimpleGymCollector(env, acting, memory, False, warmup // NUM_ENVS, NUM_ENVS)
    updates = run.steps - warmup
    callbacks = [collector, *agent.callbacks, BackPropStepsTerminator(updates)]
    Trainer(callbacks, MemoryLoader(table, batch, 1, "batch_size")).train()
    memory.store(str(run.out / f"{EXPORT_NAME}_export"))
    return evaluate_policy(
        greedy(agent.policy, make_lander), ENV_ID, run.evaluation_episodes, run.seed
    )


def learn_action_space(run: Run, batch: int, updates: int) -> None:
    """Train the auto-encoder on the exported memory and write a checkpoint of it."""
    env = make_envs(make_lander, 1, run.seed)
    table = memory_table(env.dict_space, run)
    loss = vae_loss(run.seed)
    callbacks = [
        MemoryImporterCallback(table, EXPORT_NAME, str(run.out)),
        loss,
        Checkpointer(
            restorees=[loss], run_root=run.out, checkpoint_interval=updates, checkpoint_index=0
        ),
        BackPropStepsTerminator(updates),
    ]
    Trainer(callbacks, MemoryLoader(table, batch, 1, "batch_size")).train()
    atomic_write_text(run.out / "vae.json", json.dumps(dict(loss.scalar_logs.items()), indent=1))


def act_in_latents(run: Run, batch: int, warmup: int) -> tuple[PolicyWrapper, SimpleGymCollector]:
    """Train an actor-critic over latents and return what acts, and what collected."""
    env = make_envs(make_lander, NUM_ENVS, run.seed + 1)
    decoder, encoder = frozen_halves(run)
    latent_space = MDPSpace(
        rewards=env.dict_space.rewards,
        actions=BoxSpace(np.dtype(np.float32), (LATENTS,)),
        state=env.dict_space.state,
    )
    table = memory_table(latent_space, run)
    memory = MemoryProxyWithEncoder(
        table, encoder, use_terminal=True, latent_multiplier=LATENT_MULTIPLIER
    )
    noted = EpisodeReturns(memory)
    agent = ActorCritic(OBS, LATENTS, run.seed + 1)
    policy = PolicyWrapper(decoder, agent.policy)
    acting = GenericAgentProxy(policy, "cpu", ("obs",), ("actions",), mode="sample")
    collector = SimpleGymCollector(env, acting, noted, False, warmup // NUM_ENVS, NUM_ENVS)
    callbacks: list[Callback] = [
        collector,
        *agent.callbacks,
        CurveReporter(run, noted, max(1, (run.steps - warmup) // 50)),
        BackPropStepsTerminator(run.steps - warmup),
    ]
    Trainer(callbacks, MemoryLoader(table, batch, 1, "batch_size")).train()
    return policy, collector


def frozen_halves(run: Run) -> tuple[DecoderWrapper, EncoderWrapper]:
    """Load the auto-encoder's checkpoint into the halves that act and remember."""
    loss = vae_loss(run.seed)
    loader = CheckpointLoader(restorees=[loss], run_root=run.out, checkpoint_index=0)
    loader.restore_state()
    decoder = DecoderWrapper(coder("decoder", run.seed), whole_observation, LATENT_MULTIPLIER)
    encoder = EncoderWrapper(coder("encoder", run.seed), whole_observation)
    for half in (decoder, encoder):
        half.load_state_dict(loss.vae.state_dict())
    return decoder, encoder


def vae_loss(seed: int) -> VAELoss:
    """Return an auto-encoder of actions with its loss."""
    vae = VariationalAutoencoder(
        coder("encoder", seed),
        coder("decoder", seed),
        "cpu",
        beta=0.004,
        keep_weights=True,
        generator=torch_generator("vae.noise", seed),
    )
    return VAELoss(vae=vae, opt=Adam(vae.parameters(), 1e-3), conditioning_func=whole_observation)


def coder(kind: str, seed: int) -> Any:
    """Return an encoder or a decoder."""
    generator = torch_generator("vae.weights", seed)
    makers: dict[str, Callable[[], Any]] = {
        "encoder": lambda: FullyConnectedEncoder(
            ACTIONS, LATENTS, "cpu", HIDDEN, OBS, generator=generator
        ),
        "decoder": lambda: FullyConnectedDecoder(
            LATENTS, ACTIONS, "cpu", HIDDEN, OBS, generator=generator
        ),
    }
    return makers[kind]()


def whole_observation(observation: Tensor) -> Tensor:
    """Condition on everything that is observed."""
    return observation


def memory_table(space: MDPSpace, run: Run) -> ArrayMemoryTable:
    """Return a table that knows terminal from interrupted ends."""
    return DictObsMemoryTable(
        spaces=space, use_terminal_column=True, maxlen=run.steps + 1, device="cpu", seed=run.seed
    )


if __name__ == "__main__":
    main(train, name="lunar_lander_genrl", steps=15_000, smoke_steps=880, evaluation_episodes=20)
