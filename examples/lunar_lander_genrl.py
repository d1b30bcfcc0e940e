"""GenRL on LunarLanderContinuous-v3: learn an action space from experience, then act in it.

    python examples/lunar_lander_genrl.py --steps 15000

Three stages. Soft actor-critic collects experience. A variational auto-encoder learns from its
memory what actions look like given what was observed. Then a fresh actor-critic learns in the space
of latents, which the frozen decoder turns into actions. Each actor-critic takes ``--steps``.
Needs `pip install 'cadenza[box2d]'`.
"""

from collections.abc import Generator
from typing import Any

import gymnasium
import numpy as np
import torch
import typer
from gymnasium.wrappers import TransformReward
from numpy.typing import NDArray
from torch import Tensor

import cadenza
from cadenza.learn import Trainer
from cadenza.learn.algorithms.genrl import (
    DecoderWrapper,
    FullyConnectedDecoder,
    FullyConnectedEncoder,
    VAELoss,
    VariationalAutoencoder,
)

OBSERVATIONS, ACTIONS, LATENTS = 8, 2, 2
HIDDEN = [128, 128]
REWARD_SCALE = 0.1
#: Of both actor-critics.
SETTINGS = {"num_envs": 4, "learning_rate": 7e-4, "tau": 0.01, "max_gradient_norm": 1.0}


class LatentActions(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Takes latents in [-1, 1], which a frozen decoder turns into actions."""

    def __init__(self, env: gymnasium.Env[Any, Any], decoder: DecoderWrapper) -> None:
        super().__init__(env)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (LATENTS,))
        self._decoder = decoder
        self._seen: Any = None

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        self._seen, info = self.env.reset(**options)
        return self._seen, info

    def step(self, action: NDArray[np.float32]) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take the action that the latent stands for."""
        latent, seen = (torch.as_tensor(x, dtype=torch.float32)[None] for x in (action, self._seen))
        self._seen, *rest = self.env.step(self._decoder(latent, seen)[0].numpy().clip(-1.0, 1.0))
        return self._seen, *rest


def lander() -> gymnasium.Env[Any, Any]:
    """Return the task with small rewards."""
    env = gymnasium.make("LunarLanderContinuous-v3")
    return TransformReward(env, lambda reward: REWARD_SCALE * float(reward))


def whole_observation(observation: Tensor) -> Tensor:
    """Condition on everything that is observed."""
    return observation


def action_space(memory: Any, batch: int, updates: int, seed: int) -> DecoderWrapper:
    """Train the auto-encoder on the transitions of ``memory``; return its decoder, frozen."""
    rng = torch.Generator().manual_seed(seed)
    vae = VariationalAutoencoder(
        FullyConnectedEncoder(ACTIONS, LATENTS, "cpu", HIDDEN, OBSERVATIONS, generator=rng),
        FullyConnectedDecoder(LATENTS, ACTIONS, "cpu", HIDDEN, OBSERVATIONS, generator=rng),
        "cpu",
        beta=0.004,
        keep_weights=True,
        generator=rng,
    )
    loss = VAELoss(
        vae=vae, opt=torch.optim.Adam(vae.parameters(), 1e-3), conditioning_func=whole_observation
    )

    def batches() -> Generator[dict[str, Any]]:
        for _ in range(updates):
            yield {"default": memory.sample(batch), "batch_size": batch}

    Trainer([loss], batches()).train()
    return DecoderWrapper(vae.decoder, whole_observation)


def main(seed: int = 0, steps: int = 15_000, episodes: int = 20) -> None:
    """Do the three stages; judge the last one greedily."""
    torch.set_num_threads(1)  # networks are small: threads would wait for one another
    first = cadenza.SAC(lander, seed=seed, **SETTINGS).learn(steps)
    decoder = action_space(first.memory, batch=256, updates=5_000, seed=seed)
    last = cadenza.SAC(lambda: LatentActions(lander(), decoder), seed=seed + 1, **SETTINGS)
    last.learn(steps)
    judge = LatentActions(gymnasium.make("LunarLanderContinuous-v3"), decoder)
    print(last.evaluate(episodes, env=judge, seed=seed))


if __name__ == "__main__":
    typer.run(main)
