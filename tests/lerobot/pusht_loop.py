"""A loop over PushT near its goal that a small machine can run.

Cycle 0 sees demonstrations from one side, where it then succeeds; cycle 1 sees both sides, and is
promoted because its episodes cover more of the goal than those of cycle 0, in more of them. Only
``alpha`` is larger than usual, as a dozen episodes show little at the usual level.
"""

from pathlib import Path
from typing import Any

from cadenza.loop.config import LoopConfig

#: Demonstrations in all; the first cycle gets half of them.
EPISODES = 8
#: Steps of a training, of a training on harvested episodes as well, and between checkpoints.
STEPS, ADAPT_STEPS, SAVE_STEPS = 100, 60, 20
#: Episodes of every evaluation, and successes wanted of every harvest.
TESTED, HARVESTED = 12, 2

SMALL = (
    "--policy.device=cpu",
    "--policy.chunk_size=8",
    "--policy.n_action_steps=8",
    "--policy.dim_model=64",
    "--policy.dim_feedforward=128",
    "--policy.n_heads=4",
    "--policy.n_encoder_layers=1",
    "--policy.use_vae=false",
    "--policy.dropout=0.0",
    "--policy.optimizer_lr=5e-4",
    f"--log_freq={SAVE_STEPS}",
    f"--save_freq={SAVE_STEPS}",
    "--eval_freq=0",
)


def document(demonstrations: Path) -> dict[str, Any]:
    """Return the configuration of the loop, as a file would hold it."""
    return {
        "run_name": "pusht",
        "seed_dataset": "local/demonstrations",
        "seed_root": str(demonstrations),
        "backend": "lerobot",
        "seed": 6,
        "policy_ladder": [{"name": "act"}],
        "data": {"initial_episodes": EPISODES // 2, "growth": 2.0},
        "train": {"steps": STEPS, "batch_size": 8, "extra_args": SMALL},
        "eval": {
            "env_type": "pusht",
            "task_suite": "NearPushT-v0",
            "n_episodes": TESTED,
            "batch_size": TESTED,
            "max_episodes": TESTED,
            "metric": "wins",
            "extra_args": ["--policy.device=cpu"],
            "env_args": [
                "--env.obs_type=environment_state_agent_pos",
                "--env.episode_length=12",
                "--env.visualization_width=96",
                "--env.visualization_height=96",
            ],
        },
        "improve": {
            "enabled": True,
            "episodes": HARVESTED,
            "adapt_steps": ADAPT_STEPS,
            "mix_ratio": 0.4,
            "device": "cpu",
        },
        "thresholds": {
            "promote_delta": 0.05,
            "regression_delta": 0.05,
            "plateau_epsilon": 0.01,
            "escalate_floor": 0.05,
            "min_promote": 0.05,
            "alpha": 0.2,
        },
        "budgets": {"max_cycles": 3, "max_gpu_hours": 1.0},
        "jobs": {"environment": ["NEAR_GOAL_HOLDS_AT"]},  # by which a test holds a training
    }


def settings(demonstrations: Path, **evaluation: Any) -> LoopConfig:
    """Return the same, with other values of how policies are measured where there are some."""
    given = document(demonstrations)
    given["eval"] |= evaluation
    return LoopConfig.from_document(given, source="pusht_loop")
