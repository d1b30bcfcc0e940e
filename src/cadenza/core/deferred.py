"""Records whose expensive parts are computed when somebody first reads them."""

from collections.abc import Callable, Mapping
from typing import Any, Self


class Deferred:
    """Base of such records; one that is built in full, field by field, defers nothing."""

    __slots__ = ("_later",)

    @classmethod
    def deferred(cls, later: Mapping[str, Callable[[], Mapping[str, Any]]], **known: Any) -> Self:
        """Return a record of ``known`` fields.

        Args:
            later: By each other field, what computes it: a function that returns this field and
                perhaps further ones, by name.
            known: The fields that are there.
        """
        record = object.__new__(cls)
        object.__setattr__(record, "_later", later)
        for name, value in known.items():
            object.__setattr__(record, name, value)
        return record

    def __getattr__(self, name: str) -> Any:
        """Compute a field that is not there yet."""
        if name.startswith("_") or name not in self._later:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}.")
        for each, value in self._later[name]().items():
            object.__setattr__(self, each, value)
        return object.__getattribute__(self, name)
