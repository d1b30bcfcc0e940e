"""Whatever a checkpoint may hold: its state is plain, complete, and comes back equal.

Adding one: a factory in `RESTOREES` whose objects differ by ``seed``.
"""

import numpy as np
import pytest
import torch
from torch import nn, optim

from cadenza.core.payloads import deserialise, serialise
from cadenza.core.schedules import BPStepScheduler, LinearSchedule
from cadenza.core.spaces import BoxSpace, DictSpace, MDPSpace
from cadenza.core.types import DictObservation, DictResponse, EpisodeState
from cadenza.learn.algorithms import dqn, sac, td3
from cadenza.learn.algorithms.amp import DiscriminatorLoss
from cadenza.learn.algorithms.genrl import (
    FullyConnectedDecoder,
    FullyConnectedEncoder,
    VAELoss,
    VariationalAutoencoder,
)
from cadenza.learn.callbacks import BackPropStepsTerminator, JsonlLogger, SystemLogger
from cadenza.learn.memory import LoggingProxyWrapper, MemoryLoader, MemoryTableProxy
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
)
from cadenza.learn.nn import ActionValueMlp, GaussianMlpPolicy
from cadenza.learn.nn.curl import CurlLoss
from cadenza.learn.nn.layers import Conv2dEncoder

SPACES = MDPSpace(
    rewards=BoxSpace(np.float32, (1,)),
    actions=BoxSpace(np.float32, (1,)),
    state=DictSpace({"obs": BoxSpace(np.float32, (2,))}),
)


def shaken(module, seed):
    """Return ``module`` with weights that follow from ``seed``."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return module


def critic(seed):
    return shaken(ActionValueMlp(2, 1, [4]), seed)


def policy(seed):
    return shaken(GaussianMlpPolicy(2, 1, [4]), seed)


def adam(module, seed):
    """Return an optimiser that has done ``seed`` steps."""
    optimizer = optim.Adam(module.parameters(), lr=0.01)
    for _ in range(seed):
        optimizer.zero_grad()
        sum(parameter.square().sum() for parameter in module.parameters()).backward()
        optimizer.step()
    return optimizer


def sac_q_loss(seed):
    q = critic(seed)
    loss = sac.QLoss(name="q", q=q, opt=adam(q, seed))
    loss.log_windowed_scalar("windowed[3]:a", [seed, 2, 3, 4])
    return loss


def sac_alpha_loss(seed):
    ln_alpha = torch.tensor([-2.0 - 0.1 * seed], requires_grad=True)
    optimizer = optim.Adam([ln_alpha], lr=0.01)
    return sac.AlphaLoss(pi=policy(0), ln_alpha=ln_alpha, opt=optimizer, n_actions=1)


def sac_q_target(seed):
    ln_alpha = torch.zeros(1)
    return sac.QTarget(pi=policy(0), ln_alpha=ln_alpha, q1=critic(seed), q2=critic(seed + 10))


def td3_q_target(seed):
    target = td3.QTarget(pi=policy(seed), q1=critic(seed), q2=critic(seed + 10))
    torch.rand(seed, generator=target.generator)
    return target


def dqn_q_target(seed):
    return dqn.QTarget(q_net=shaken(nn.Linear(2, 3), seed))


def epsilon_schedule(seed):
    greedy = dqn.EpsilonGreedyPolicy(nn.Linear(2, 3))
    callback = dqn.EpsilonSchedule(greedy, LinearSchedule(1.0, 0.0, 10))
    for _ in range(seed):
        callback.begin_batch()
    return callback


def discriminator_loss(seed):
    network = shaken(nn.Linear(4, 1), seed)
    optimizer = adam(network, seed)
    schedule = optim.lr_scheduler.StepLR(optimizer, 1 + seed)
    return DiscriminatorLoss(network, nn.Identity(), nn.Identity(), 1.0, optimizer, schedule, 1.0)


def model_loss_with_hold_out(seed):
    ensemble = EnsembleOfGaussian(in_size=3, out_size=3, device="cpu", ensemble_size=2)
    model = DynamicModel(model=shaken(ensemble, seed))
    hold_out = HoldOut(interval=1, fraction=0.5)
    loss = ModelLoss(model=model, opt=adam(ensemble, seed), hold_out=hold_out)
    for step in range(seed):
        rows = torch.randn(8, 2, generator=torch.Generator().manual_seed(step))
        loss.backward({"obs": rows}, {"obs": rows + 1.0}, rows[:, :1], rows[:, 1:])
    return loss


def idle(observations):
    return {agent: DictResponse({"actions": [0.0]}, {}) for agent in observations}


def model_based_collector(seed):
    ensemble = EnsembleOfGaussian(in_size=3, out_size=3, device="cpu", ensemble_size=2)
    env = ModelEnv(
        num_envs=2,
        model=DynamicModel(model=ensemble),
        termination_fn=lambda obs: torch.zeros(len(obs)),
        fixed_members=True,
    )
    table = DictObsMemoryTable(spaces=SPACES, maxlen=100, device="cpu")
    collector = ModelBasedCollector(
        env, idle, MemoryTableProxy(table), BPStepScheduler(0, 1, 2, 2), 1
    )
    for _ in range(seed):
        collector.begin_batch(default={"observation": {"obs": torch.zeros(2, 2)}})
    return collector


def batch_sampler(seed):
    table = DictObsMemoryTable(spaces=SPACES, maxlen=100, device="cpu")
    loader = MemoryLoader(table, 2, 1, "batch_size", "rl_buffer")
    sampler = BatchSampler(loader, BPStepScheduler(0, 10, 0.0, 1.0))
    for _ in range(seed):
        sampler.begin_batch(default={})
    return sampler


def progress_check(seed):
    ensemble = EnsembleOfGaussian(in_size=3, out_size=3, device="cpu", ensemble_size=2)
    check = LossProgressCheck(DynamicModel(model=ensemble), num_bp=10)
    rows = torch.zeros(4, 2)
    for _ in range(seed):
        check.get_batch({"obs": rows}, {"obs": rows}, rows[:, :1], rows[:, :1])
    return check


def curl_loss(seed):
    encoders = [Conv2dEncoder((6, 6, 1), [2], [3], [2], [1]) for _ in range(2)]
    loss = CurlLoss(shaken(encoders[0], seed), encoders[1], "cpu", 1e-2, desired_zdim=3)
    for _ in range(seed):
        loss.backward({"images": torch.ones(2, 6, 6, 1)})
        loss.end_batch()
    return loss


def vae_loss(seed):
    encoder = FullyConnectedEncoder(2, 1, "cpu", [3])
    decoder = FullyConnectedDecoder(1, 2, "cpu", [3])
    vae = VariationalAutoencoder(shaken(encoder, seed), decoder, "cpu", keep_weights=True)
    loss = VAELoss(vae=vae, opt=adam(vae.encoder.mean, seed))
    loss.backward({"obs": torch.zeros(seed, 2)}, torch.zeros(seed, 2))
    return loss


def memory(seed):
    table = DictObsMemoryTable(
        spaces=SPACES, use_terminal_column=True, maxlen=20, device="cpu", seed=3
    )
    proxy = LoggingProxyWrapper(MemoryTableProxy(table, 1, True), object(), 10_000)
    steps = [EpisodeState.INITIAL, *[EpisodeState.RUNNING] * seed, EpisodeState.TERMINAL]
    for agent in range(seed + 1):
        for age, state in enumerate(steps[: None if agent < seed else -1]):  # the last stays open
            observation = DictObservation(
                {"reward": None if age == 0 else float(age)}, state, {"obs": np.ones(2) * age}
            )
            is_last = state is EpisodeState.TERMINAL
            responses = {} if is_last else {agent: DictResponse({"actions": [0.5]}, {})}
            proxy.add({agent: observation}, responses)
    if seed:
        table.sample(2, 1)
    return proxy


def system_logger(seed):
    logger = SystemLogger()
    logger.log_scalar("system/cpu_load", float(seed))
    return logger


def jsonl_logger(seed):
    logger = JsonlLogger([], "unused.jsonl", 1)
    logger.load_state_dict({"offset": seed})
    return logger


RESTOREES = {
    factory.__name__: factory
    for factory in (
        sac_q_loss,
        sac_alpha_loss,
        sac_q_target,
        td3_q_target,
        dqn_q_target,
        epsilon_schedule,
        discriminator_loss,
        model_loss_with_hold_out,
        model_based_collector,
        batch_sampler,
        progress_check,
        curl_loss,
        vae_loss,
        memory,
        system_logger,
        jsonl_logger,
    )
}


def bits(restoree):
    """Return the state as bytes: equal states give equal bytes."""
    return serialise(restoree.state_dict())


@pytest.mark.parametrize("kind", sorted(RESTOREES))
def test_state_comes_back_equal_through_a_file(kind):
    make = RESTOREES[kind]
    source, target = make(3), make(1)
    saved = bits(source)
    assert bits(target) != saved  # so an empty state cannot pass
    target.load_state_dict(deserialise(saved, max_bytes=2**24), True, True, True)
    assert bits(target) == saved
    assert bits(source) == saved


@pytest.mark.parametrize("kind", sorted(RESTOREES))
def test_name_is_a_text_that_stays(kind):
    assert isinstance(RESTOREES[kind](1).name, str)
    assert RESTOREES[kind](1).name == RESTOREES[kind](2).name


def test_callback_without_a_state_is_a_restoree_too():
    stop = BackPropStepsTerminator(3)
    stop.load_state_dict(deserialise(bits(stop), max_bytes=2**16), True, True, True)
    assert stop.state_dict() == {}
