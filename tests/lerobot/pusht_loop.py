"""A loop over PushT that a small machine can run, and a controller of it that can be killed.

    python pusht_loop.py WORKDIR DATASET RUN_ID

The policy is far too small to push the T onto its goal: nothing succeeds by LeRobot's own measure.
So that what follows a success is run at all, to `Graded` every episode
counts as solved, whatever came of it; the harvest keeps every episode too.
"""

import sys
from pathlib import Path
from typing import Any

from cadenza.loop.backends.base import EvalRequest
from cadenza.loop.backends.lerobot import LeRobotBackend
from cadenza.loop.config import LoopConfig
from cadenza.loop.contracts.records import EvalReport

SMALL = (
    "--policy.device=cpu",
    "--policy.chunk_size=8",
    "--policy.n_action_steps=8",
    "--policy.dim_model=64",
    "--policy.dim_feedforward=128",
    "--policy.n_heads=4",
    "--policy.n_encoder_layers=1",
    "--policy.n_vae_encoder_layers=1",
    "--policy.latent_dim=8",
    "--log_freq=10",
    "--save_freq=10",
    "--eval_freq=0",
)


def settings(workdir: Path, dataset: Path, **changes: Any) -> LoopConfig:
    """Return the configuration, with other values at the top where ``changes`` has some."""
    document = {
        "run_name": "pusht",
        "seed_dataset": "local/demonstrations",
        "seed_root": str(dataset),
        "backend": "lerobot",
        "workdir": str(workdir / "runs"),
        "seed": 3,
        "policy_ladder": [{"name": "act"}],
        "data": {"initial_episodes": 3, "growth": 2.0},
        "train": {"steps": 40, "batch_size": 2, "extra_args": SMALL},
        "eval": {
            "env_type": "pusht",
            "task_suite": "PushT-v0",
            "n_episodes": 3,
            "batch_size": 3,
            "max_episodes": 3,
            "metric": "score",
            "extra_args": ["--policy.device=cpu"],
            "env_args": [
                "--env.obs_type=environment_state_agent_pos",
                "--env.episode_length=40",
            ],
        },
        "improve": {
            "enabled": True,
            "episodes": 2,
            "adapt_steps": 10,
            "device": "cpu",
            "extra_args": ["--keep-failures"],
        },
        "thresholds": {"min_promote": 0.0},
        "knowledge": {"root": str(workdir / "knowledge")},
        "budgets": {"max_cycles": 2, "max_gpu_hours": 1.0},
    }
    return LoopConfig.from_document({**document, **changes}, source="pusht_loop")


class Graded(LeRobotBackend):
    """The back end with a success that so small a policy can have."""

    def read_eval(self, request: EvalRequest) -> EvalReport:
        """Return the report, with every episode solved that has any score."""
        report = super().read_eval(request)
        outcomes = tuple(
            outcome.model_copy(update={"success": outcome.score is not None})
            for outcome in report.outcomes
        )
        return report.model_copy(update={"outcomes": outcomes, "success_rate": 1.0})


def main(workdir: Path, dataset: Path, run_id: str) -> None:
    from cadenza.loop.orchestrator import build_loop

    config = settings(workdir, dataset)
    with build_loop(config, run_id, backend=Graded(config)) as loop:
        loop.run()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
