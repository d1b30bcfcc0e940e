"""Settings that were measured on a task, with the scores they gave; ``presets.yaml`` holds them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cadenza.core.errors import ConfigurationError, did_you_mean
from cadenza.core.yaml_files import read_yaml


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """One training that was measured.

    Attributes:
        name: What ``perf/scores.py`` calls it.
        env: Gymnasium's id, or ``cooperative_push``.
        algorithm: Name of the class.
        steps: Environment steps of a seed.
        settings: Those of the class, ``num_envs`` among them.
        seeds: How many were trained, from 0 on.
        score: Mean return of the last policies, and the ends of its 95 % interval where it varies:
            over the seeds, or over the episodes of a single one.
        episodes: Episodes that judge a seed.
        reward_scale: Factor on the rewards of the training.
    """

    name: str
    env: str
    algorithm: str
    steps: int
    settings: Mapping[str, Any]
    seeds: int
    score: Sequence[float]
    episodes: int = 50
    reward_scale: float = 1.0

    @property
    def command(self) -> str:
        """What repeats the score, in a checkout of the sources."""
        return f"python perf/scores.py {self.name} --seeds {self.seeds}"


def presets() -> dict[str, Preset]:
    """Return all of them by name."""
    table = read_yaml(Path(__file__).with_suffix(".yaml"))
    return {name: Preset(name=name, **entry) for name, entry in table.items()}


def preset_settings(algorithm: str, task: str) -> dict[str, Any]:
    """Return the settings of an algorithm on a task, for the environment as it is.

    Raises:
        ConfigurationError: None were measured.
    """
    known = {
        each.env: each.settings
        for each in presets().values()
        if each.algorithm == algorithm and each.reward_scale == 1.0
    }
    if task not in known:
        raise ConfigurationError(
            f"{algorithm}.preset: expected one of {sorted(known)}, got {task!r}"
            f"{did_you_mean(task, known)}; `cadenza configs list` names the presets of all "
            "algorithms."
        )
    return dict(known[task])
