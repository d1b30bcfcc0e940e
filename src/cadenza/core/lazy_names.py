"""Names that a package offers and imports at first use, so that importing it stays cheap.

In the package's ``__init__``: ``__dir__, __getattr__ = lazy_names(__name__, _EXPORTS)`` (PEP 562).
"""

import sys
from collections.abc import Callable, Mapping
from importlib.util import resolve_name
from typing import Any

from cadenza.core.extras import load_extra


def lazy_names(
    package: str, exports: Mapping[str, str]
) -> tuple[Callable[[], list[str]], Callable[[str], Any]]:
    """Return a package's ``__dir__`` and ``__getattr__``.

    Args:
        package: Its full name.
        exports: Offered names, and the modules below the package that define them; a leading dot
            for one beside it.

    Returns:
        What lists all names of the package, the lazy ones included; and what imports the module
        that defines a name and returns the object. The latter raises `AttributeError` for a name
        that is not offered, `MissingExtraError` where the package of an extra is absent.
    """

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *exports})

    def load(name: str) -> Any:
        if name not in exports:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(load_extra(resolve_name(f".{exports[name]}", package)), name)

    return names, load
