"""Soft actor-critic from pixels on CarRacing-v3, with CURL training the encoder.

    python examples/car_racing_curl.py --steps 4000

Three grey 84 x 84 frames go through one convolutional encoder that the critics and the contrastive
loss train; the policy reads its features without training them. Every decision lasts four frames.
Steps are decisions. Far too few of them for a good driver: two cores render and convolve slowly.
Needs `pip install 'cadenza[box2d]'`.
"""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch
from actor_critic import MIN_LOG_PROB, losses
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from harness import Run, evaluate_policy, main
from off_policy import CurveReporter, EpisodeReturns, torch_generator
from torch import Tensor, nn

from cadenza.learn import Trainer
from cadenza.learn.callbacks.generic import BackPropStepsTerminator
from cadenza.learn.collectors.sync import SimpleGymCollector
from cadenza.learn.configs import SACConfig
from cadenza.learn.env.dict_gym_wrapper import DictGymWrapper
from cadenza.learn.env.replayable import ReplayableEnv
from cadenza.learn.env.wrappers import FrameStack, ScaledFloatFrame, WarpFrame
from cadenza.learn.memory import MemoryLoader, MemoryTableProxy
from cadenza.learn.memory.builder import DictObsMemoryTable
from cadenza.learn.nn.action_value_mlp import ActionValueMlp
from cadenza.learn.nn.curl import IMAGES, CurlLoss
from cadenza.learn.nn.gaussian_policy import GaussianMlpPolicy
from cadenza.learn.nn.layers import Conv2dEncoder
from cadenza.learn.proxies import GenericAgentProxy

ENV_ID = "CarRacing-v3"
SIZE, FRAMES, ACTIONS = 84, 3, 3
#: Frames per decision; an episode of 1000 frames is then 250 decisions.
REPEAT = 4
NUM_ENVS = 2
BATCH = 32
#: More than one episode of each environment: the memory gets an episode when it has ended.
WARMUP_STEPS = 600
HIDDEN = [256, 256]
CONFIG = SACConfig(learning_rate=5e-4, tau=0.01, max_gradient_norm=1.0)
REWARD_SCALE = 0.2


class RepeatedAction(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Holds every action for several frames and adds up the rewards."""

    def __init__(self, env: gymnasium.Env[Any, Any], repeat: int, limit: int) -> None:
        """Hold for ``repeat`` frames; truncate after ``limit`` decisions."""
        super().__init__(env)
        self._repeat = repeat
        self._limit = limit
        self._decisions = 0

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        self._decisions = 0
        return self.env.reset(**options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take one decision."""
        total = 0.0
        self._decisions += 1
        for _ in range(self._repeat):
            observation, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        return observation, total, terminated, truncated or self._decisions >= self._limit, info


class Images(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Names the images, as the contrastive loss wants them."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        """Wrap ``env``."""
        super().__init__(env)
        box = spaces.Box(-1.0, 1.0, (SIZE, SIZE, FRAMES), np.float32)
        self.observation_space = spaces.Dict({IMAGES: box})

    def observation(self, observation: Any) -> dict[str, Any]:
        """Return the frames by name."""
        return {IMAGES: np.asarray(observation, np.float32)}


def make_env(limit: int = 250) -> gymnasium.Env[Any, Any]:
    """Return a car with small grey images, actions in [-1, 1] and ``limit`` decisions at most."""
    env: gymnasium.Env[Any, Any] = gymnasium.make(ENV_ID)
    env = RepeatedAction(
        gymnasium.wrappers.RescaleAction(env, np.float32(-1), np.float32(1)), REPEAT, limit
    )
    return Images(FrameStack(ScaledFloatFrame(WarpFrame(env, SIZE, SIZE)), FRAMES))


def make_envs(limit: int, seed: int) -> DictGymWrapper:
    """Return the environments, whose episodes a checkpoint can bring back."""

    def maker(index: int) -> Callable[[], gymnasium.Env[Any, Any]]:
        return lambda: ReplayableEnv(make_env(limit), root_seed=seed, index=index)

    return DictGymWrapper(
        SyncVectorEnv([maker(i) for i in range(NUM_ENVS)], autoreset_mode=AutoresetMode.SAME_STEP)
    )


class ImageCritic(nn.Module):
    """Q(a, images) over a shared encoder."""

    def __init__(self, encoder: Conv2dEncoder, generator: torch.Generator) -> None:
        """Put a perceptron on ``encoder``."""
        super().__init__()
        self.encoder = encoder
        self.value = ActionValueMlp(size_of(encoder), ACTIONS, HIDDEN, generator=generator)

    def forward(self, action: Tensor, images: Tensor) -> Tensor:
        """Return values, shape (B, 1)."""
        return self.value(action, self.encoder(images))


class ImagePolicy(nn.Module):
    """A Gaussian policy that reads the features of an encoder without training it."""

    def __init__(self, encoder: Conv2dEncoder, generator: torch.Generator, seed: int) -> None:
        """Put a policy on ``encoder``, which stays outside of this module's parameters."""
        super().__init__()
        self._encoder = [encoder]  # a list, so that it is no submodule and not optimised
        self.head = GaussianMlpPolicy(
            size_of(encoder),
            ACTIONS,
            HIDDEN,
            generator=torch_generator("car.noise", seed),
            min_log_prob=MIN_LOG_PROB,
            init_generator=generator,
        )

    def forward(
        self, images: Tensor, epsilon: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return what `GaussianMlpPolicy` does for the features of ``images``."""
        with torch.no_grad():
            features = self._encoder[0](images)
        return self.head(features, epsilon)


def size_of(encoder: Conv2dEncoder) -> int:
    """Return the number of features."""
    size = encoder.get_encoder_output_size()
    return size if isinstance(size, int) else int(np.prod(size))


def new_encoder(generator: torch.Generator) -> Conv2dEncoder:
    """Return the encoder: four layers of stride 2."""
    return Conv2dEncoder(
        (SIZE, SIZE, FRAMES), [16, 16, 32, 32], [3] * 4, [2] * 4, [1] * 4, generator=generator
    )


def train(run: Run) -> None:
    """Train one seed and evaluate it greedily."""
    batch, warmup, limit = (8, 60, 20) if run.smoke else (BATCH, WARMUP_STEPS, 250)
    weights = torch_generator("car.weights", run.seed)
    encoder = new_encoder(weights)
    critics = [ImageCritic(encoder, weights) for _ in "12"]
    policy = ImagePolicy(encoder, weights, run.seed)
    env = make_envs(limit, run.seed)
    table = DictObsMemoryTable(
        spaces=env.dict_space,
        use_terminal_column=True,
        maxlen=run.steps + 1,
        device="cpu",
        seed=run.seed,
    )
    acting = GenericAgentProxy(policy, "cpu", (IMAGES,), ("actions",), mode="sample")
    memory = EpisodeReturns(MemoryTableProxy(table, use_terminal=True))
    collector = SimpleGymCollector(env, acting, memory, False, warmup // NUM_ENVS, NUM_ENVS)
    updates = run.steps - warmup
    curl = CurlLoss(encoder, new_encoder(weights), "cpu", 3e-4, log_images=False, seed=run.seed)
    callbacks = [
        collector,
        curl,
        *losses(policy, critics, ACTIONS, CONFIG, reward_scale=REWARD_SCALE),
        CurveReporter(run, memory, max(1, updates // 50)),
        BackPropStepsTerminator(updates),
    ]
    Trainer(callbacks, MemoryLoader(table, batch, 1, "batch_size")).train()

    def act(observation: dict[str, Any]) -> Any:
        policy.eval()
        with torch.no_grad():
            return policy(torch.as_tensor(observation[IMAGES])[None])[0].numpy()

    returns = evaluate_policy(act, lambda: make_env(limit), run.evaluation_episodes, run.seed)
    run.finish(returns, env_steps=collector.inf_step, updates=updates)


if __name__ == "__main__":
    main(train, name="car_racing_curl", steps=4_000, smoke_steps=80, evaluation_episodes=10)
