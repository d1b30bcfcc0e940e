"""Demonstrations as agents learn from them: rows as their spaces have them, found again by a file.

Axes:  L = steps of an episode, O = flattened observation, A = action components.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from cadenza.core.episodes import STATE, Episode, Episodes, read_episodes
from cadenza.core.errors import InputError, refuse
from cadenza.learn.env.making import flat_rows
from cadenza.learn.env.stepping import ActionCodec
from cadenza.learn.memory.builder import TransitionMemory
from cadenza.learn.nn.encoders import AnySpace, has_parts, parts_of

#: A file or folder for `read_episodes`, or what that returned.
Demonstrations: TypeAlias = str | Path | Episodes


@dataclass(slots=True)
class Source:
    """Where an agent's demonstrations are; a file keeps their path and digest.

    Attributes:
        given: Them, or their path; None if there are none, or only a file knows their path.
        sha256: Digest of what they held when they were first read; empty before.
    """

    given: Demonstrations | None
    sha256: str = ""

    @property
    def is_told(self) -> bool:
        """Whether there are any, be it that a file knows them alone."""
        return self.given is not None or bool(self.sha256)

    def read(self, owner: str) -> Episodes:
        """Return the demonstrations.

        Raises:
            InputError: There are none, or others than those that were learned from.
        """
        if self.given is None:
            expected = "demonstrations=..., a path or what read_episodes returns"
            refuse(InputError, f"{owner}.learn", expected=expected, got="none")
        found = self.given if isinstance(self.given, Episodes) else read_episodes(self.given)
        digest = found.sha256()
        if digest != (self.sha256 or digest):
            expected = f"the demonstrations that it learned from, SHA-256 {self.sha256[:12]}..."
            got, do = f"others in {found.source}", "make a new agent for them"
            refuse(InputError, f"{owner}.learn", expected=expected, got=got, do=do)
        self.sha256 = digest
        return found

    def state_dict(self) -> dict[str, str]:
        """Return path and digest; the path is empty if they were given from memory."""
        known = self.given is not None and not isinstance(self.given, Episodes)
        return {"path": str(self.given) if known else "", "sha256": self.sha256}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the digest, and the path unless other demonstrations were given."""
        self.given = self.given or str(state["path"]) or None
        self.sha256 = str(state["sha256"])


def observation_rows(episode: Episode, space: AnySpace, owner: str) -> NDArray[Any]:
    """Return observations as rows, (L, O) or (L + 1, O): bytes of images, else float32.

    A space that is no dict takes the only observation of the episode, or ``state``.

    Raises:
        InputError: There is no such observation, or it has another shape.
    """
    named = dict(episode.observations)
    if not has_parts(space):
        named = {STATE: next(iter(named.values()))} if len(named) == 1 else named
    rows = flat_rows(_parts(named, space, "" if has_parts(space) else STATE, owner), space)
    return rows if rows.dtype == np.uint8 else rows.astype(np.float32)


def _parts(named: Mapping[str, NDArray[Any]], space: AnySpace, name: str, owner: str) -> Any:
    """Return the observations that ``space`` consists of, nested as it is."""
    if has_parts(space):
        inner = parts_of(space)
        return {k: _parts(named, s, f"{name}.{k}" if name else k, owner) for k, s in inner.items()}
    shape = space.shape or ()
    values = named.get(name)
    fits = values is not None and values[0].size == int(np.prod(shape))
    if values is None or not fits or (values.ndim > 2 and values.shape[1:] != shape):
        shapes = {key: array.shape[1:] for key, array in named.items()}
        expected = f"demonstrations with an observation {name!r} of shape {shape}"
        do = "choose with read_episodes(path, observations=[...])"
        refuse(InputError, owner, expected=expected, got=str(shapes), do=do)
    return values.reshape(len(values), *shape)


def decision_rows(
    episode: Episode, space: AnySpace, codec: ActionCodec, owner: str
) -> NDArray[Any]:
    """Return actions as decisions: numbers in [−1, 1], (L, A), or choices, (L,).

    Raises:
        InputError: They have another shape, or are none of the choices.
    """
    shape, actions = space.shape or (), episode.actions
    if actions[0].size != int(np.prod(shape)):
        expected = f"demonstrated actions of shape {shape}"
        refuse(InputError, owner, expected=expected, got=actions.shape[1:])
    if codec.choices is not None and not (actions == np.floor(actions)).all():
        refuse(InputError, owner, expected="demonstrated choices, whole numbers", got="others")
    return codec.from_env(actions.reshape(len(actions), *shape))


def remember(
    memory: TransitionMemory,
    episodes: Episodes,
    space: AnySpace,
    stored: Callable[[Episode], NDArray[Any]],
    owner: str,
) -> None:
    """Put the transitions of demonstrations into a memory, as those of its first environment.

    Steps whose end is unknown are left out: see `Episode.targets`.

    Args:
        memory: Gets them.
        episodes: Demonstrations with rewards.
        space: Of observations.
        stored: Returns the actions of an episode as the memory has them, (L, W).
        owner: Whose demonstrations they are, for messages.

    Raises:
        InputError: There are no rewards, or an episode is of other spaces.
    """
    first = np.arange(memory.num_envs) == 0

    def beside(row: Any) -> NDArray[Any]:
        return np.repeat(np.asarray(row)[None], memory.num_envs, axis=0)

    for episode in episodes:
        if episode.rewards is None:
            expected, got = "demonstrations with rewards", f"some without from {episodes.source}"
            refuse(InputError, owner, expected=expected, got=got, do="clone them by cadenza.BC")
        rows, actions = observation_rows(episode, space, owner), stored(episode)
        for step in range(episode.targets):
            is_last = step == episode.targets - 1
            memory.add(
                beside(rows[step]),
                beside(actions[step]),
                beside(episode.rewards[step]),
                terminated=beside(is_last and episode.terminated and step == len(episode) - 1),
                boundaries=beside(is_last),
                next_observations=beside(rows[min(step + 1, len(rows) - 1)]),
                valid=first,
            )


def joined(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return two batches of columns, nested alike, as one."""
    found: dict[str, Any] = {}
    for name, value in first.items():
        join: Any = joined if isinstance(value, dict) else _stacked
        found[name] = join(value, second[name])
    return found


def _stacked(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    return torch.cat((first, second))
