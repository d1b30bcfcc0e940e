"""Demonstrations as agents learn from them: rows as their spaces have them, found again by a file.

Axes:  L = steps of an episode, O = flattened observation, A = action components.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cadenza.core.episodes import STATE, Episode, Episodes, read_episodes
from cadenza.core.errors import InputError
from cadenza.learn.env.making import flat_rows
from cadenza.learn.env.stepping import ActionCodec
from cadenza.learn.nn.encoders import AnySpace, has_parts, parts_of

#: A file or folder for `read_episodes`, or what that returned.
Demonstrations: TypeAlias = str | Path | Episodes


@dataclass(slots=True)
class Source:
    """Where an agent's demonstrations are; a file keeps their path and digest.

    Attributes:
        given: Them, or their path; None if nobody said.
        sha256: Digest of what they held when they were first read; empty before.
    """

    given: Demonstrations | None
    sha256: str = ""

    def read(self, owner: str) -> Episodes:
        """Return the demonstrations.

        Raises:
            InputError: There are none, or others than those that were learned from.
        """
        if self.given is None:
            raise InputError(
                f"{owner}.learn: expected demonstrations=..., a path or what read_episodes "
                "returns, got none."
            )
        found = self.given if isinstance(self.given, Episodes) else read_episodes(self.given)
        digest = found.sha256()
        if digest != (self.sha256 or digest):
            raise InputError(
                f"{owner}.learn: expected the demonstrations that it learned from, SHA-256 "
                f"{self.sha256[:12]}..., got others in {found.source}; make a new agent for them."
            )
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
        raise InputError(
            f"{owner}: expected demonstrations with an observation {name!r} of shape {shape}, got "
            f"{shapes}; choose with read_episodes(path, observations=[...])."
        )
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
        raise InputError(
            f"{owner}: expected demonstrated actions of shape {shape}, got {actions.shape[1:]}."
        )
    if codec.choices is not None and not (actions == np.floor(actions)).all():
        raise InputError(f"{owner}: expected demonstrated choices, whole numbers, got others.")
    return codec.from_env(actions.reshape(len(actions), *shape))
