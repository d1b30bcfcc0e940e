"""Work put off until it is needed: names of a package, parts of a record, what follows an import.

In the package's ``__init__`` each name stands once, for type checkers, editors and Python alike::

    if TYPE_CHECKING:
        from .home import Answer as Answer
    else:
        __dir__, __getattr__ = lazy_names(__name__)
"""

import ast
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, resolve_name
from types import ModuleType
from typing import Any, Self

from cadenza.core.extras import load_extra


def lazy_names(
    name: str, *, deprecated: Mapping[str, str] | None = None
) -> tuple[Callable[[], list[str]], Callable[[str], Any]]:
    """Return ``__dir__`` and ``__getattr__`` (PEP 562) of the module with this full name.

    It offers what it imports under ``if TYPE_CHECKING:``: each name is imported when it is first
    asked for. They are its ``__all__`` unless it has one, so that ``from package import *`` finds
    them. ``deprecated`` says of some what to do instead: these are not listed, and warn.
    ``__getattr__`` raises `AttributeError` for a name that is not offered, and `MissingExtraError`
    where the package of an extra is absent.
    """
    module, advice = sys.modules[name], deprecated or {}
    loader: Any = getattr(module.__spec__, "loader", None)

    @cache
    def homes() -> dict[str, str]:
        return _typed_imports(loader.get_source(name), str(module.__package__))

    def listed() -> list[str]:
        return sorted(homes().keys() - advice.keys())

    def load(wanted: str) -> Any:
        if wanted == "__all__":
            return listed()
        if wanted not in homes():
            raise AttributeError(f"module {name!r} has no attribute {wanted!r}")
        if wanted in advice:
            said = f"{name}.{wanted} is deprecated: {advice[wanted]}."
            warnings.warn(said, DeprecationWarning, stacklevel=2)
        home: ModuleType = load_extra(homes()[wanted])
        if wanted not in vars(home):  # a module
            load_extra(f"{home.__name__}.{wanted}")
        return vars(home)[wanted]

    return lambda: sorted({*vars(module), *listed()}), load


def _typed_imports(source: str, package: str) -> dict[str, str]:
    """Return the names that are imported under ``if TYPE_CHECKING:``, and from which modules."""
    blocks = [node for node in ast.parse(source).body if isinstance(node, ast.If)]
    return {
        alias.name: resolve_name("." * node.level + (node.module or ""), package)
        for block in blocks
        if ast.unparse(block.test) == "TYPE_CHECKING"
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


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
