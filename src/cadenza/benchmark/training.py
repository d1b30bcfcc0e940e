"""Ego training from a configuration: build the parts, train, close everything.

The safety driver watches the very environment that is stepped. Evaluation during training plays
held-out episodes in an environment of its own and draws nothing from the training streams.
"""

from collections.abc import Mapping
from contextlib import closing
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cadenza.aht.config import EgoAHTConfig
from cadenza.aht.train import train
from cadenza.aht.types import Policy, ProgressCallback, TrainerFactory, TrainingResult
from cadenza.benchmark.builders import (
    build_batched_safety_driver,
    build_env,
    build_partner,
    build_safety_driver,
)
from cadenza.benchmark.episodes import EpisodeTag, open_world, run_episode
from cadenza.benchmark.tasks import get_task
from cadenza.core.device import flushed_denormals, single_torch_thread
from cadenza.core.proportions import clopper_pearson_interval
from cadenza.core.quantiles import student_quantile
from cadenza.core.types import Observation
from cadenza.evaluation.results import EpisodeResult
from cadenza.partners.interface import PartnerBase


def run_training(
    cfg: EgoAHTConfig,
    *,
    trainer_factory: TrainerFactory | None = None,
    repo_root: Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: ProgressCallback | None = None,
) -> TrainingResult:
    """Build environment, partner, safety driver and evaluator, and train the ego.

    Args:
        cfg: Checked configuration.
        trainer_factory: Builds the learner; by default the algorithm ``cfg.algo``.
        repo_root: Source tree for the run's provenance; by default this package's own checkout.
        resume: Go on from the newest intact training state of this run.
        overwrite: Delete the results of an earlier run of this identity first.
        progress: Called with (frames done, frames in total, return of the last episode or None).

    Returns:
        Reward curve and trained learner; unpacks as ``curve, trainer``.

    Raises:
        ConfigurationError: The parts do not fit, or the run has results already.
        CheckpointError: ``resume`` found only damaged training states.
        StorageError: The file system refused.
        IntegrityError: The training has changed the partner's weights.
    """
    env = build_env(cfg.env, root_seed=cfg.seed, partner=cfg.partner)
    build_driver = build_safety_driver if cfg.env.num_envs == 1 else build_batched_safety_driver
    partner = build_partner(cfg.partner, env=env)
    with closing(env), single_torch_thread(), flushed_denormals():
        result = train(
            cfg,
            env=env,
            partner=partner,
            trainer_factory=trainer_factory,
            repo_root=repo_root,
            safety=build_driver(env, cfg.safety),
            evaluator=HeldOutEvaluator(cfg),
            progress=progress,
            resume=resume,
            overwrite=overwrite,
        )
    if isinstance(partner, PartnerBase):
        partner.verify_weights()
    return result


class HeldOutEvaluator:
    """Measures the deterministic policy on episodes that training never sees.

    Episode ``i`` is reset with seed ``i`` in an environment whose root seed is apart from the
    training seed; partner and safety filter are those of the training.
    """

    def __init__(self, cfg: EgoAHTConfig) -> None:
        self._env = cfg.env.model_copy(update={"num_envs": 1})
        self._partner = cfg.partner
        self._safety = cfg.safety

    def __call__(self, policy: Policy, *, episodes: int, root_seed: int) -> Mapping[str, float]:
        """Return the figures of ``episodes`` episodes, see `summarise_episodes`."""
        with open_world(
            env=self._env,
            partner=self._partner,
            safety=self._safety,
            root_seed=root_seed,
            make_policy=lambda _: _CallablePolicy(policy),
        ) as world:
            results = [
                run_episode(
                    world,
                    EpisodeTag(
                        seed=root_seed,
                        episode_idx=index,
                        initial_state_seed=index,
                        policy="training",
                        condition="filter_on" if self._safety.enabled else "filter_off",
                        partner=self._partner.class_name,
                    ),
                )
                for index in range(episodes)
            ]
        return summarise_episodes(results, has_success=get_task(self._env.task).has_success)


class _CallablePolicy:
    """A function of the observation, as an `EgoPolicy`."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def reset(self, *, seed: int) -> None:
        """Nothing to forget."""
        del seed

    def act(self, obs: Observation) -> NDArray[Any]:
        """Return the function's action."""
        return self._policy(obs)


def summarise_episodes(episodes: list[EpisodeResult], *, has_success: bool) -> dict[str, float]:
    """Return mean return and rates with 95 % bounds; episodes are independent draws of one seed.

    Args:
        episodes: At least one episode.
        has_success: Whether the task has a success predicate.
    """
    n = len(episodes)
    returns = np.array([episode.episode_return for episode in episodes], dtype=np.float64)
    mean = float(returns.mean())
    figures = {"n_episodes": float(n), "mean_episode_reward": mean}
    if n > 1:
        half_width = student_quantile(0.975, n - 1) * float(returns.std(ddof=1)) / sqrt(n)
        figures |= {
            "mean_episode_reward_ci_low": mean - half_width,
            "mean_episode_reward_ci_high": mean + half_width,
        }
    if has_success:
        figures |= _rate("success_rate", [episode.success for episode in episodes])
    contacts = [episode.contact for episode in episodes if episode.contact is not None]
    if len(contacts) == n:
        figures |= _rate("contact_rate", contacts)
    return figures


def _rate(name: str, outcomes: list[bool]) -> dict[str, float]:
    count = sum(outcomes)
    low, high = clopper_pearson_interval(count, len(outcomes))
    return {name: count / len(outcomes), f"{name}_ci_low": low, f"{name}_ci_high": high}
