"""Checkpoints of the original Emote, with the names that our networks give their layers.

Emote:  a linear layer and its ReLU are nested, ``encoder.<i>.0``; an action-value network has its
        last layer apart, ``final_layer``; convolutions are ``_layers.<i>``.
Here:   one stack, so that ``encoder.<i>.0`` is ``encoder.<2 i>``; that of an action-value network
        is ``q``, its last layer included; convolutions are ``layers.<i>``.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

import torch

from cadenza.core.errors import CheckpointError
from cadenza.core.payloads import deserialise

_NESTED: Final = re.compile(r"(.*\.|)(encoder|hidden_layers)\.(\d+)\.0\.(\w+)")
_LAST: Final = re.compile(r"(.*\.|)final_layer\.(\w+)")
_CONVOLUTION: Final = re.compile(r"(.*\.|)_layers\.(\d+\.\w+)")


def emote_weights(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a network's state dict of Emote with our names; other names stay as they are."""
    nested = [found for found in map(_NESTED.fullmatch, state) if found]
    renamed: dict[str, Any] = {}
    for key, value in state.items():
        if found := _NESTED.fullmatch(key):
            stack = "q" if f"{found[1]}final_layer.weight" in state else found[2]
            renamed[f"{found[1]}{stack}.{2 * int(found[3])}.{found[4]}"] = value
        elif found := _LAST.fullmatch(key):
            depth = len({other[3] for other in nested if other[1] == found[1]})
            renamed[f"{found[1]}q.{2 * depth}.{found[2]}"] = value
        elif found := _CONVOLUTION.fullmatch(key):
            renamed[f"{found[1]}layers.{found[2]}"] = value
        else:
            renamed[key] = value
    return renamed


def read_emote_checkpoint(path: str | Path, *, max_bytes: int | None = None) -> dict[str, Any]:
    """Return the content of a file that Emote's ``Checkpointer`` wrote, or ``torch.save`` there.

    Its state dicts have our names, so that networks and losses load them. ``max_bytes`` is the most
    to accept, packed and unpacked; None: any size, but nothing that unpacks to more than it has on
    disk (archives of torch are not compressed).

    Raises:
        CheckpointError: Too large, damaged, or with more than tensors and plain values.
        OSError: There is no such file.
    """
    file = Path(path)
    size = file.stat().st_size
    limit = size if max_bytes is None else max_bytes
    if size > limit:
        raise CheckpointError(
            f"{file}: expected at most {limit} bytes, got {size}; raise max_bytes if you trust the "
            "file."
        )
    try:
        with torch.serialization.safe_globals([(_window_as_list, "collections.deque")]):
            return _renamed(deserialise(file.read_bytes(), max_bytes=limit))
    except CheckpointError as error:
        raise CheckpointError(f"{file}: {error}") from error


def _window_as_list(*_arguments: object) -> list[Any]:
    """Stand in for an empty ``deque``, to which torch's safe reader could not append."""
    return []


def _renamed(content: Any) -> Any:
    if isinstance(content, dict):
        found = {k: _renamed(v) for k, v in cast("dict[Any, Any]", content).items()}
        return emote_weights(found) if all(isinstance(key, str) for key in found) else found
    if isinstance(content, list):
        return [_renamed(item) for item in cast("list[Any]", content)]
    return content
