"""Tiny zoos for tests: seconds to train, nothing learned."""

from cadenza.benchmark.zoo.build import train_zoo
from cadenza.benchmark.zoo.config import ZooConfig
from cadenza.learn.configs import PPOConfig


def tiny(method="fcp", **changes):
    """Return a configuration of two policies and six rollouts each."""
    ppo = PPOConfig(
        rollout_length=10,
        batch_size=40,
        epochs=1,
        hidden_sizes=(8, 8),
        normalize_rewards=True,
        normalize_observations=True,
    )
    settings = {
        "task": "mpe_cooperative_push",
        "population": 2,
        "steps": 240,
        "num_envs": 4,
        "episode_length": 10,
        "snapshots": 3,
        "episodes": 4,
        "ppo": ppo,
    }
    return ZooConfig(method=method, **{**settings, **changes})


def made(folder, method="fcp", **changes):
    """Train a tiny zoo in ``folder`` and return its manifest."""
    return train_zoo(tiny(method, **changes), out=folder, workers=1)


def bytes_of(folder):
    """Return every file of a zoo but the lock, by relative name."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }
