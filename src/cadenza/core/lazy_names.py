"""Work put off until it is needed: names of a package, parts of a record, what follows an import.

In the package's ``__init__``: ``__dir__, __getattr__ = lazy_names(__name__, _EXPORTS)`` (PEP 562).
"""

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, resolve_name
from types import ModuleType
from typing import Any, Self

from cadenza.core.extras import load_extra


def lazy_names(
    package: str, exports: Mapping[str, str], *, deprecated: Mapping[str, str] | None = None
) -> tuple[Callable[[], list[str]], Callable[[str], Any]]:
    """Return ``__dir__`` and ``__getattr__`` of the package with this full name.

    ``exports`` are the offered names and the modules below the package that define them; a leading
    dot is for one beside it. They become the package's ``__all__`` unless it has one, so that
    ``from package import *`` finds them. ``deprecated`` says of some what to do instead: these are
    not listed, and warn. ``__getattr__`` raises `AttributeError` for a name that is not offered,
    and `MissingExtraError` where the package of an extra is absent.
    """
    module, advice = sys.modules[package], deprecated or {}
    listed = sorted(exports.keys() - advice.keys())
    vars(module).setdefault("__all__", listed)

    def names() -> list[str]:
        return sorted({*vars(module), *listed})

    def load(name: str) -> Any:
        if name not in exports:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if name in advice:
            warnings.warn(
                f"{package}.{name} is deprecated: {advice[name]}.", DeprecationWarning, stacklevel=2
            )
        return getattr(load_extra(resolve_name(f".{exports[name]}", package)), name)

    return names, load


class Deferred:
    """Base of records whose expensive parts are computed when somebody first reads them.

    One that is built in full, field by field, defers nothing.
    """

    __slots__ = ("_later",)

    @classmethod
    def deferred(cls, later: Mapping[str, Callable[[], Mapping[str, Any]]], **known: Any) -> Self:
        """Return a record of ``known`` fields.

        ``later`` has a function for each other field, which returns it and perhaps further ones.
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


def after_import(name: str, call: Callable[[], None]) -> None:
    """Call ``call`` right after the package ``name`` is imported; now, if it was already."""
    if name in sys.modules:
        call()
    else:
        sys.meta_path.insert(0, _Watch(name, call))


class _Watch(MetaPathFinder):
    """Finds one package as all other finders do, and goes."""

    def __init__(self, name: str, call: Callable[[], None]) -> None:
        self._name, self._call = name, call

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of the package, whose loader calls when it is done."""
        del path, target
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None:
            loader: Any = spec.loader
            execute: Callable[[ModuleType], None] = loader.exec_module

            def execute_and_call(module: ModuleType) -> None:
                execute(module)
                self._call()

            loader.exec_module = execute_and_call
        return spec
