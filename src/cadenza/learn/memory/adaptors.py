"""Changes to a whole sampled batch, after it has become tensors.

An adaptor is called as ``adaptor(result, count, sequence_length)`` with the batch by column name
and returns the batch to hand on; it may change ``result`` in place. Axes: n = count of windows,
T = sequence length, B = n T rows, rollout-major (row = rollout T + t).
"""

from typing import Any, Protocol

import torch

from cadenza.core.errors import ConfigurationError, InputError, refuse
from cadenza.learn.memory.column import SampleResult


class Adaptor(Protocol):
    """One step between the gathered tensors and the batch that a table gives out."""

    def __call__(self, result: SampleResult, count: int, sequence_length: int) -> SampleResult:
        """Return the changed batch of ``count`` windows of ``sequence_length`` rows."""
        ...


def _take(result: SampleResult, key: str, owner: str) -> Any:
    """Return ``result[key]``, or say which keys there are."""
    if key not in result:
        wanted = f"a column {key!r} in the sampled batch"
        do = "correct the key or add the column to the table"
        refuse(InputError, owner, expected=wanted, got=f"{sorted(result)}", do=do)
    return result[key]


class DictObsAdaptor:
    """Gathers observation columns into the dicts ``observation`` and ``next_observation``.

    Args:
        keys: Columns to take out of the batch.
        output_keys: Their names inside the dicts; the same names if None.
        with_next: Also take ``next_<key>`` of each key into ``next_observation``.

    Raises:
        ConfigurationError: ``output_keys`` has another length than ``keys``.
    """

    def __init__(
        self, keys: list[str], output_keys: list[str] | None = None, with_next: bool = True
    ) -> None:
        names = keys if output_keys is None else output_keys
        if len(names) != len(keys):
            wanted = f"one output key for each of {keys}"
            refuse(ConfigurationError, "DictObsAdaptor", expected=wanted, got=f"{names}")
        self._names = list(zip(keys, names, strict=True))
        self._with_next = with_next

    def __call__(self, result: SampleResult, count: int, sequence_length: int) -> SampleResult:
        """Return the batch with the observation columns gathered; errors as `InputError`."""
        del count, sequence_length
        observation: dict[str, torch.Tensor] = {}
        next_observation: dict[str, torch.Tensor] = {}
        for key, name in self._names:
            observation[name] = _take(result, key, "DictObsAdaptor")
            del result[key]
            if self._with_next:
                next_observation[name] = _take(result, f"next_{key}", "DictObsAdaptor")
                del result[f"next_{key}"]
        result["observation"] = observation
        result["next_observation"] = next_observation
        return result


class KeyScaleAdaptor:
    """Multiplies one column by a number, or a tensor that broadcasts to (B, *shape).

    Floating point columns keep their dtype. Integer columns times a float become the default
    floating point dtype, as products of tensors do.
    """

    def __init__(self, scale: float | torch.Tensor, key: str) -> None:
        self._scale = scale
        self._key = key

    def __call__(self, result: SampleResult, count: int, sequence_length: int) -> SampleResult:
        """Return the batch with the column scaled; errors as `InputError`."""
        del count, sequence_length
        values = _take(result, self._key, "KeyScaleAdaptor")
        result[self._key] = values * self._scale
        return result


class KeyCastAdaptor:
    """Converts one column to another dtype."""

    def __init__(self, dtype: torch.dtype, key: str) -> None:
        self._dtype = dtype
        self._key = key

    def __call__(self, result: SampleResult, count: int, sequence_length: int) -> SampleResult:
        """Return the batch with the column converted; errors as `InputError`."""
        del count, sequence_length
        result[self._key] = _take(result, self._key, "KeyCastAdaptor").to(self._dtype)
        return result


class TerminalAdaptor:
    """Lets the way an episode ended decide whether values bootstrap through its last row.

    A table does not know how an episode ended, so its masks are 0 in the last row of every episode.
    The tag column knows: 1 for an interrupted episode, 0 for a terminal one. Where a window ends
    with the last row of an interrupted episode, this sets the mask of that row to 1. A window never
    crosses an episode, so no other row changes.

    Args:
        target_key: Tag column, shape (n,). It is replaced by the resolved value of each window:
            1 if the tag is 1, else the mask of the window's last row.
        value_key: Mask column, (B, ...), one number per row. Its last row of each window becomes
            1 where the tag is 1, in place.

    Tags and masks must be 0 or 1.
    """

    def __init__(self, target_key: str, value_key: str) -> None:
        self._target_key = target_key
        self._value_key = value_key

    def __call__(self, result: SampleResult, count: int, sequence_length: int) -> SampleResult:
        """Return the batch with both columns resolved.

        Raises:
            InputError: A column is missing, or not of n and n T rows.
        """
        tags: torch.Tensor = _take(result, self._target_key, "TerminalAdaptor")
        masks: torch.Tensor = _take(result, self._value_key, "TerminalAdaptor")
        if len(tags) != count or len(masks) != count * sequence_length:
            rows = count * sequence_length
            wanted = f"{count} rows of {self._target_key!r} and {rows} of {self._value_key!r}"
            got = f"{len(tags)} and {len(masks)}"
            do = "the first must be a tag column, the second one per transition"
            refuse(InputError, "TerminalAdaptor", expected=wanted, got=got, do=do)
        masks = masks.contiguous()
        last = masks.view(count, sequence_length, -1)[:, -1]  # a view of the last rows, (n, size)
        values = last.reshape(tags.shape)
        # Of zeros and ones, the greater one is 1 where the tag is 1 and the mask elsewhere.
        resolved = torch.maximum(tags, values if values.dtype == tags.dtype else values.to(tags))
        last.copy_(resolved.view(last.shape))
        result[self._target_key] = resolved
        result[self._value_key] = masks
        return result
