"""Exports episodes as a Minari dataset, the format of offline reinforcement learning.

Observations are nested as the environment has them: the field ``obs`` is the array itself, and
``obs.robot.qpos`` the entry ``qpos`` of the dict ``robot``. What Minari has no place for (success,
the version of the policy, the number in the stream, every other step field) is in the infos, one
entry per observation; those of the reset are zero.

Axes:  L = steps of an episode.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Space
from numpy.typing import NDArray

from cadenza.core.checks import require_instance
from cadenza.core.errors import ConfigurationError, InputError
from cadenza.core.extras import load_extra
from cadenza.stream.bridges.episodes import Episode

Array = NDArray[Any]

_ACTIONS: Final = "actions"
_REWARDS: Final = "rewards"
_TERMINATED: Final = "terminated"
#: Ids that Minari takes; a namespace has two characters at least.
_DATASET_ID: Final = re.compile(r"(?:[-\w][-\w/]*[-\w]/)?[-\w]+-v\d+")
#: Step fields that Minari has a place for.
_PLACED: Final = frozenset({_ACTIONS, _REWARDS, _TERMINATED, "truncated"})


def export_to_minari(
    episodes: Iterable[Episode],
    dataset_id: str,
    *,
    observation_space: Space[Any] | None = None,
    action_space: Space[Any] | None = None,
    env: str | gymnasium.Env[Any, Any] | None = None,
    **metadata: Any,
) -> Any:
    """Write a dataset called ``(namespace/)name-vN`` into Minari's folder and return it.

    All episodes have the same fields; one that was cut off without saying so ends truncated. Spaces
    are those of ``env``, so that the dataset can make it again, or boxes of all values of their
    types; ``metadata`` are further keywords of ``minari.create_dataset_from_buffers``, such as
    ``author``.

    Raises:
        MissingExtraError: The extra ``minari`` is not installed.
        InputError: There is no episode, or one lacks actions, rewards or observations, or has other
            fields than the first, or other keys than the space of the observations.
        ConfigurationError: The dataset exists, or ``dataset_id`` can be none.
        ConfigurationTypeError: An argument is of another type.
    """
    minari = load_extra("minari")
    episodes = _checked_episodes(episodes)
    _require_new(minari, dataset_id)
    given = observation_space or getattr(env, "observation_space", None)
    if given is not None:
        _require_keys(given, _nested(episodes[0].states))
    if env is None:
        observation_space = observation_space or _observation_space(_nested(episodes[0].states))
        action_space = action_space or _space(episodes[0].steps[_ACTIONS])
    return minari.create_dataset_from_buffers(
        dataset_id,
        [_buffer(minari, index, episode) for index, episode in enumerate(episodes)],
        env=env,
        observation_space=observation_space,
        action_space=action_space,
        jpeg_encoding=False,  # which would change the pixels
        **metadata,
    )


def _checked_episodes(episodes: Iterable[Episode]) -> list[Episode]:
    """Return the episodes if one dataset can hold them all."""
    require_instance("export_to_minari: episodes", episodes, Iterable, "give a list of episodes")
    listed = list(episodes)
    if not listed:
        raise InputError("export_to_minari: expected at least one episode, got none.")
    for episode in listed:
        require_instance("export_to_minari: episodes", episode, Episode, "see EpisodeReader.take")
        _require_fields(episode, listed[0])
    return listed


def _require_new(minari: Any, dataset_id: str) -> None:
    """Raise unless ``dataset_id`` is one that no dataset has."""
    require_instance("export_to_minari: dataset_id", dataset_id, str, "write 'name-v0'")
    if not _DATASET_ID.fullmatch(dataset_id):
        raise ConfigurationError(
            f"export_to_minari: expected an id '(namespace/)name-vN', got {dataset_id!r}; end it "
            "with a version."
        )
    if dataset_id in minari.list_local_datasets():
        raise ConfigurationError(
            f"export_to_minari: expected a new dataset, got {dataset_id!r}, which exists; raise "
            "its version or delete it."
        )


def _require_fields(episode: Episode, first: Episode) -> None:
    """Raise unless ``episode`` can be exported beside ``first``."""
    missing = sorted({_ACTIONS, _REWARDS, _TERMINATED} - set(episode.steps))
    if missing or not episode.states:
        raise InputError(
            f"export_to_minari: expected actions, rewards, terminated and a state field, got "
            f"{sorted([*episode.steps, *episode.states])} in episode {episode.number}; select them "
            "when reading."
        )
    if set(episode.steps) != set(first.steps) or set(episode.states) != set(first.states):
        raise InputError(
            f"export_to_minari: expected the fields {sorted([*first.steps, *first.states])} of the "
            f"first episode in all of them, got {sorted([*episode.steps, *episode.states])} in "
            f"episode {episode.number}."
        )


def _nested(states: Mapping[str, Array]) -> "Array | dict[str, Any]":
    """Return the observations as the environment has them, see the module."""
    if set(states) == {"obs"}:
        return states["obs"]
    found: dict[str, Any] = {}
    for name, array in states.items():
        *path, last = name.removeprefix("obs.").split(".")
        place = found
        for key in path:
            place = place.setdefault(key, {})
        place[last] = array
    return found


def _require_keys(
    space: Any, observations: "Array | dict[str, Any]", place: str = "observation_space"
) -> None:
    """Raise unless ``space`` nests as the observations do."""
    keys: list[str] | None = sorted(cast("Any", space)) if isinstance(space, Dict) else None
    inner = observations if isinstance(observations, dict) else {}
    if (keys or []) != sorted(inner):
        raise InputError(
            f"export_to_minari: expected {place} with {_told(sorted(inner))} as in the episodes, "
            f"got {_told(keys)}; give the space of the environment that they come from."
        )
    for key, values in inner.items():
        _require_keys(space[key], values, f"{place}[{key!r}]")


def _told(keys: list[str] | None) -> str:
    return f"the keys {keys}" if keys else "one array"


def _observation_space(observations: "Array | dict[str, Any]") -> Space[Any]:
    if not isinstance(observations, dict):
        return _space(observations)
    return Dict({key: _observation_space(inner) for key, inner in observations.items()})


def _space(values: Array) -> Box:
    """Return the box of everything that entries of ``values``, (n, ...), could be."""
    dtype: Any = values.dtype.type
    if values.dtype.kind == "f":
        return Box(-np.inf, np.inf, values.shape[1:], dtype)
    if values.dtype.kind == "b":
        return Box(0, 1, values.shape[1:], dtype)
    limits = np.iinfo(dtype)
    return Box(limits.min, limits.max, values.shape[1:], dtype)


def _buffer(minari: Any, index: int, episode: Episode) -> Any:
    """Return the episode as Minari collects it."""
    terminations = episode.steps[_TERMINATED]
    return minari.data_collector.EpisodeBuffer(
        id=index,
        observations=_nested(episode.states),
        actions=episode.steps[_ACTIONS],
        rewards=list(episode.steps[_REWARDS]),
        terminations=list(terminations),
        truncations=list(episode.dones() & ~terminations),
        infos=_infos(episode),
    )


def _infos(episode: Episode) -> dict[str, Array]:
    """Return the other facts, one entry per observation, (L + 1, ...)."""
    infos = {
        name: np.concatenate((np.zeros_like(values[:1]), values))
        for name, values in episode.steps.items()
        if name not in _PLACED
    }
    size = episode.length + 1
    infos["episode_number"] = np.full(size, episode.number)
    if episode.success is not None:
        infos["success"] = np.append(False, episode.dones() & episode.success)
    return infos
