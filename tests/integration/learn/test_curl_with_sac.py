"""Soft actor-critic from pixels: critics and contrastive loss share one encoder."""

from copy import deepcopy

import numpy as np
import torch
from gymnasium import Env, spaces, vector
from torch import nn
from torch.nn.utils import parameters_to_vector as weights

from cadenza.learn import Trainer
from cadenza.learn.algorithms.sac import QLoss, soft_actor_critic
from cadenza.learn.callbacks import BackPropStepsTerminator
from cadenza.learn.collectors.sync import SimpleGymCollector
from cadenza.learn.configs import SACConfig
from cadenza.learn.env.dict_gym_wrapper import DictGymWrapper
from cadenza.learn.memory import MemoryLoader, MemoryTableProxy
from cadenza.learn.memory.builder import DictObsMemoryTable
from cadenza.learn.nn import ActionValueMlp, GaussianMlpPolicy
from cadenza.learn.nn.curl import IMAGES, CurlLoss
from cadenza.learn.nn.layers import Conv2dEncoder
from cadenza.learn.optimizers import adam
from cadenza.learn.proxies import GenericAgentProxy

SHAPE, WIDTH = (16, 16, 1), 4 * 4 * 8


class BrightColumn(Env):
    """Shows a bright column in one image per episode; rewards the action that points at it."""

    observation_space = spaces.Dict({IMAGES: spaces.Box(-1.0, 1.0, SHAPE, np.float32)})
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = int(self.np_random.integers(SHAPE[1]))
        return {IMAGES: np.eye(SHAPE[1], dtype=np.float32)[[self.place] * SHAPE[0], :, None]}, {}

    def step(self, action):
        miss = abs(float(action[0]) - self.place / 7.5 + 1.0)
        return {IMAGES: np.zeros(SHAPE, np.float32)}, -miss, True, False, {}


class Critic(ActionValueMlp):
    def __init__(self, encoder, generator):
        super().__init__(WIDTH, 1, [16], generator=generator)
        self.encoder = encoder

    def forward(self, action, images):
        return super().forward(action, self.encoder(images))


class Policy(nn.Module):
    def __init__(self, encoder, generator):
        super().__init__()
        self.reads = [encoder]  # a list: no submodule, so the policy's optimiser leaves it alone
        self.head = GaussianMlpPolicy(WIDTH, 1, [16], generator=generator, init_generator=generator)

    def forward(self, images, epsilon=None):
        return self.head(self.reads[0](images).detach(), epsilon)


def train(curl_rate):
    """Do 30 updates; return weights of encoder and head, before and after, and CURL's loss."""
    rng = torch.Generator().manual_seed(0)
    encoder = Conv2dEncoder(SHAPE, [8, 8], [3, 3], [2, 2], [1, 1], generator=rng)
    policy, critics = Policy(encoder, rng), [Critic(encoder, rng) for _ in range(2)]
    losses = [QLoss(name=f"q{i}", q=q, opt=adam(q, 1e-3)) for i, q in enumerate(critics)]
    sac = soft_actor_critic(policy, losses, torch.zeros(1, requires_grad=True), 1, SACConfig())
    curl = CurlLoss(encoder, deepcopy(encoder), "cpu", curl_rate, log_images=False)
    env = DictGymWrapper(vector.SyncVectorEnv([BrightColumn], autoreset_mode="SameStep"))
    table = DictObsMemoryTable(
        spaces=env.dict_space, use_terminal_column=True, maxlen=99, device="cpu", seed=0
    )
    agent = GenericAgentProxy(policy, "cpu", (IMAGES,), ("actions",), mode="sample")
    actor = SimpleGymCollector(env, agent, MemoryTableProxy(table, use_terminal=True), False, 20, 1)
    parts = encoder, policy.head
    before = [weights(part.parameters()) for part in parts]
    callbacks = [actor, curl, *sac, BackPropStepsTerminator(30)]
    Trainer(callbacks, MemoryLoader(table, 8, 1, "batch_size")).train()
    assert actor.inf_step == 20 + 30  # one before every update
    return before, [weights(p.parameters()) for p in parts], curl.scalar_logs["loss/curl_loss"]


def test_critics_and_contrastive_loss_train_the_encoder_that_they_share():
    before, by_critics, _ = train(curl_rate=0.0)
    _, by_both, loss = train(curl_rate=3e-4)
    assert np.isfinite(loss)
    for one, other in (before, by_critics), (by_critics, by_both), (before, by_both):
        assert all(not torch.allclose(*pair, atol=1e-3) for pair in zip(one, other, strict=True))
