"""Soft actor-critic from pixels on CarRacing-v3, with CURL training the encoder.

    python examples/car_racing_curl.py --steps 4000

Three grey 84 x 84 frames go through one convolutional encoder that the critics and the contrastive
loss train; the policy reads its features without training them. Every decision lasts four frames.
Steps are decisions. Far too few of them for a good driver: two cores render and convolve slowly.
Needs `pip install 'cadenza[box2d]'`.
"""

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces, wrappers
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from harness import Outcome, Run, main
from torch import Tensor, nn

from cadenza.learn import Callback, Trainer
from cadenza.learn.algorithms.sac import QLoss, soft_actor_critic
from cadenza.learn.callbacks import BackPropStepsTerminator
from cadenza.learn.collectors.sync import SimpleGymCollector
from cadenza.learn.configs import SACConfig
from cadenza.learn.env.dict_gym_wrapper import DictGymWrapper
from cadenza.learn.env.replayable import ReplayableEnv
from cadenza.learn.env.wrappers import FrameStack, ScaledFloatFrame, WarpFrame
from cadenza.learn.judging import evaluate_policy
from cadenza.learn.memory import MemoryLoader, MemoryTableProxy
from cadenza.learn.memory.builder import DictObsMemoryTable
from cadenza.learn.nn import ActionValueMlp, GaussianMlpPolicy
from cadenza.learn.nn.curl import IMAGES, CurlLoss
from cadenza.learn.nn.layers import Conv2dEncoder
from cadenza.learn.optimizers import adam
from cadenza.learn.proxies import GenericAgentProxy

SIZE, FRAMES, ACTIONS, ENVS = 84, 3, 3, 2
#: Frames per decision.
REPEAT = 4
CONFIG = SACConfig(learning_rate=5e-4, tau=0.01, max_gradient_norm=1.0)


def make_env(decisions: int) -> gymnasium.Env[Any, Any]:
    """Return a car with small grey images, actions in [-1, 1] and ``decisions`` at most."""
    one = np.float32(1.0)
    env: Any = gymnasium.make("CarRacing-v3", max_episode_steps=decisions * REPEAT)
    env = wrappers.MaxAndSkipObservation(wrappers.RescaleAction(env, -one, one), REPEAT)
    env = FrameStack(ScaledFloatFrame(WarpFrame(env, SIZE, SIZE)), FRAMES)
    box = spaces.Box(-1.0, 1.0, (SIZE, SIZE, FRAMES), np.float32)
    return wrappers.TransformObservation(
        env, lambda images: {IMAGES: np.asarray(images, np.float32)}, spaces.Dict({IMAGES: box})
    )


def new_encoder(generator: torch.Generator) -> Conv2dEncoder:
    """Return the encoder: four layers of stride 2."""
    return Conv2dEncoder(
        (SIZE, SIZE, FRAMES), [16, 16, 32, 32], [3] * 4, [2] * 4, [1] * 4, generator=generator
    )


class ImageCritic(nn.Module):
    """Q(a, images) over a shared encoder."""

    def __init__(self, encoder: Conv2dEncoder, generator: torch.Generator) -> None:
        super().__init__()
        self.encoder = encoder
        width = int(np.prod(encoder.get_encoder_output_size()))
        self.value = ActionValueMlp(width, ACTIONS, CONFIG.hidden_sizes, generator=generator)

    def forward(self, action: Tensor, images: Tensor) -> Tensor:
        """Return values, (B, 1)."""
        return self.value(action, self.encoder(images))


class ImagePolicy(nn.Module):
    """A Gaussian policy that reads the features of an encoder without training it."""

    def __init__(self, encoder: Conv2dEncoder, generator: torch.Generator) -> None:
        super().__init__()
        self._encoder = [encoder]  # a list, so that it is no submodule and not optimised
        width = int(np.prod(encoder.get_encoder_output_size()))
        self.head = GaussianMlpPolicy(
            width, ACTIONS, CONFIG.hidden_sizes, generator=generator, init_generator=generator
        )

    def forward(self, images: Tensor, epsilon: Tensor | None = None) -> Any:
        """Return what `GaussianMlpPolicy` does for the features of ``images``."""
        with torch.no_grad():
            features = self._encoder[0](images)
        return self.head(features, epsilon)


class Curve(Callback):
    """Reports the mean reward of the batches."""

    def __init__(self, run: Run) -> None:
        super().__init__(cycle=max(1, run.steps // 50))
        self.data_group = "default"
        self._run = run

    def end_cycle(self, rewards: Tensor, inf_step: int) -> None:
        """Add a point."""
        self._run.report(inf_step, float(rewards.mean()))


def train(run: Run) -> Outcome:
    """Train one seed and judge it greedily."""
    # The memory gets an episode when it has ended: the warm-up is longer than one of each.
    batch, warmup, decisions = (8, 60, 20) if run.smoke else (32, 600, 250)

    def make(index: int) -> gymnasium.Env[Any, Any]:
        return ReplayableEnv(make_env(decisions), root_seed=run.seed, index=index)

    generator = torch.Generator().manual_seed(run.seed)
    encoder = new_encoder(generator)
    policy = ImagePolicy(encoder, generator)
    critics = [ImageCritic(encoder, generator) for _ in range(2)]
    algorithm = soft_actor_critic(
        policy,
        [
            QLoss(name=f"q{i}", q=critic, opt=adam(critic, CONFIG.learning_rate), max_grad_norm=1.0)
            for i, critic in enumerate(critics)
        ],
        torch.full((1,), CONFIG.initial_alpha).log().requires_grad_(),
        ACTIONS,
        CONFIG,
        reward_scale=0.2,
    )
    env = DictGymWrapper(
        SyncVectorEnv(
            [lambda index=index: make(index) for index in range(ENVS)],
            autoreset_mode=AutoresetMode.SAME_STEP,
        )
    )
    table = DictObsMemoryTable(
        spaces=env.dict_space,
        use_terminal_column=True,
        maxlen=run.steps + 1,
        device="cpu",
        seed=run.seed,
    )
    acting = GenericAgentProxy(policy, "cpu", (IMAGES,), ("actions",), mode="sample")
    memory = MemoryTableProxy(table, use_terminal=True)
    collector = SimpleGymCollector(env, acting, memory, False, warmup // ENVS, ENVS)
    updates = run.steps - warmup
    callbacks = [
        collector,
        CurlLoss(encoder, new_encoder(generator), "cpu", 3e-4, log_images=False, seed=run.seed),
        *algorithm,
        Curve(run),
        BackPropStepsTerminator(updates),
    ]
    Trainer(callbacks, MemoryLoader(table, batch, 1, "batch_size")).train()
    policy.eval()

    @torch.no_grad()
    def greedy(observation: dict[str, Any]) -> Any:
        return policy(torch.as_tensor(observation[IMAGES])[None])[0].numpy()

    judged = evaluate_policy(greedy, make_env(decisions), run.episodes, seed=run.seed)
    return Outcome(returns=judged.returns, env_steps=collector.inf_step, updates=updates)


if __name__ == "__main__":
    main(
        train,
        name="car_racing_curl",
        steps=4_000,
        smoke_steps=80,
        episodes=10,
        measure="mean reward of a batch",
    )
