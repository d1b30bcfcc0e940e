"""Doing something once a package has been imported, whoever imports it, and nothing before."""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any


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
