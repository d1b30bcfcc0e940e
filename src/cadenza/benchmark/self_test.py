"""Two short runs of the real thing, for `cadenza doctor`: does the filter hold, do seeds repeat."""

import tempfile
from pathlib import Path

import numpy as np

from cadenza.aht.config import EgoAHTConfig
from cadenza.benchmark.training import run_training
from cadenza.core.files import sha256_file
from cadenza.envs.crossing import ACCELERATION_LIMIT_EGO, CONTACT_DISTANCE, CrossingEnv
from cadenza.safety.runtime.driver import SafetyDriver
from cadenza.safety.runtime.options import SafetyOptions


def closest_approach() -> tuple[float, float]:
    """Drive the ego straight at a partner that stands still, behind the filter.

    Returns:
        Smallest distance of the centres and the distance of contact, m.
    """
    env = CrossingEnv()
    env.reset(seed=0)
    driver = SafetyDriver.from_env(env, ego_uid=env.ego_uid, options=SafetyOptions())
    driver.begin_run(0)
    driver.begin_episode()
    still = np.zeros(2, dtype=np.float32)
    closest = float("inf")
    ended = False
    while not ended:
        positions = env.robot_positions()
        towards = positions[env.partner_uid] - positions[env.ego_uid]
        nominal = ACCELERATION_LIMIT_EGO * towards / float(np.abs(towards).max())
        action = driver.step(nominal).action.astype(np.float32)
        _, _, terminated, truncated, info = env.step({env.ego_uid: action, env.partner_uid: still})
        closest = min(closest, float(info["min_distance"]))
        ended = terminated or truncated
    return closest, CONTACT_DISTANCE


def short_training_digest() -> str:
    """Train for two rollouts and return the SHA-256 of the checkpoint."""
    with tempfile.TemporaryDirectory(prefix="cadenza-self-test-") as folder:
        config = EgoAHTConfig.model_validate(
            {
                "total_frames": 256,
                "checkpoint_every": 256,
                "artifacts_root": folder,
                "log_dir": folder,
                "env": {"task": "mpe_cooperative_push"},
                "partner": {"extra": {"uid": "partner"}},
                "happo": {"rollout_length": 128, "batch_size": 64},
                "runtime": {"device": "cpu"},
            }
        )
        result = run_training(config, repo_root=Path(folder))
        return sha256_file(result.curve.checkpoint_paths[-1])
