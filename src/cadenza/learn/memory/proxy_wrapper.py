"""Objects that stand before a memory proxy and add to what it does."""

import inspect
from collections.abc import Mapping
from typing import Any, Final

from cadenza.core.types import AgentId, DictObservation, DictResponse
from cadenza.learn.load_switches import accepts_other_names

_INNER: Final = "inner"
_MISSING: Final = object()


class MemoryProxyWrapper:
    """Forwards methods and properties that it lacks to the proxy it wraps.

    What the wrapper defines itself wins. Plain attributes are not forwarded: they are the inner
    proxy's own business.

    Args:
        inner: A memory proxy or another wrapper.
        kwargs: Handed on to the next class in line, for wrappers with several bases.
    """

    def __init__(self, inner: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        """Return the method or property ``name`` of the nearest wrapped object that has it."""
        # The lookup of `_inner` itself comes here before the constructor has run.
        target = self.__dict__.get("_inner", _MISSING)
        while target is not _MISSING:
            found = inspect.getattr_static(target, name, _MISSING)
            if found is not _MISSING:
                return _forwarded(self, target, name, found)
            if not isinstance(target, MemoryProxyWrapper):
                break
            target = target.__dict__.get("_inner", _MISSING)
        raise AttributeError(
            f"{type(self).__name__}: neither it nor what it wraps has an attribute {name!r}."
        )

    def add(
        self,
        observations: Mapping[AgentId, DictObservation],
        responses: Mapping[AgentId, DictResponse],
    ) -> None:
        """Hand observations and responses to the inner proxy."""
        self._inner.add(observations, responses)

    def state_dict(self) -> dict[str, Any]:
        """Return the inner proxy's state under ``inner``; empty if it keeps none."""
        inner = inspect.getattr_static(self._inner, "state_dict", None)
        return {} if inner is None else {_INNER: self._inner.state_dict()}

    @accepts_other_names
    def load_state_dict(
        self,
        state_dict: Mapping[str, Any],
        load_network: bool = True,
        load_optimizer: bool = True,
        load_hparams: bool = True,
    ) -> None:
        """Load the inner proxy's state if ``state_dict`` holds one."""
        if _INNER in state_dict:
            self._inner.load_state_dict(
                state_dict[_INNER], load_network, load_optimizer, load_hparams
            )


def _forwarded(wrapper: object, target: object, name: str, found: object) -> Any:
    """Return ``target``'s ``name`` if it is a bound method or a property."""
    if isinstance(found, property):
        return getattr(target, name)
    value = getattr(target, name)
    if inspect.ismethod(value):
        return value
    raise AttributeError(
        f"{type(wrapper).__name__}: {name!r} of the wrapped {type(target).__name__} is "
        f"neither a method nor a property, so it is not forwarded; got {type(value).__name__}."
    )


class MemoryTableProxyWrapper(MemoryProxyWrapper):
    """Wraps a proxy that writes to a table.

    Args:
        inner: A `MemoryTableProxy` or a wrapper around one.
        kwargs: Handed on to the next class in line.
    """

    def __init__(self, *, inner: Any, **kwargs: Any) -> None:
        super().__init__(inner=inner, **kwargs)

    @property
    def name(self) -> str:
        """Name of the inner proxy in logs and checkpoints."""
        return self._inner.name

    def store(self, path: str, **options: Any) -> None:
        """Write the table to ``<path>.zip``; options are those of the inner ``store``."""
        self._inner.store(path, **options)
