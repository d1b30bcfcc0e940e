"""The dictionary that callbacks and trainer share, and what of it outlives a batch."""

from collections.abc import Mapping
from typing import Any, cast

from cadenza.core.types import WeakReference


class StateDict(dict[str, Any]):
    """A dict of training state that supports weak references.

    Values are transient when they came with a batch, and so are groups (mappings) that hooks write
    during a step. `next_batch` drops them, so that no value of an older batch is read by mistake.
    Everything else persists.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._transient: set[str] = set()

    def get_handle(self) -> "WeakReference[StateDict]":
        """Return a weak reference to this dict."""
        return WeakReference(self)

    def next_batch(self, batch: Mapping[str, Any]) -> None:
        """Forget the transient values and take those of ``batch``.

        Groups are copied one level deep: hooks add to them, and the loader may own the original.
        """
        for key in self._transient:
            self.pop(key, None)
        self._transient = set(batch)
        for key, value in batch.items():
            is_group = type(value) is dict
            self[key] = dict(cast("dict[str, Any]", value)) if is_group else value

    def write(self, values: Mapping[str, Any], *, in_step: bool) -> None:
        """Merge what a hook returned.

        Args:
            values: New values by key.
            in_step: Whether the hook belongs to a step, so that groups are transient.
        """
        self.update(values)
        for key, value in values.items():
            if in_step and isinstance(value, Mapping):
                self._transient.add(key)

    def persistent(self) -> dict[str, Any]:
        """Return the values that outlive a batch."""
        return {key: value for key, value in self.items() if key not in self._transient}
