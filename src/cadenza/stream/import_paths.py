"""Functions named in a configuration, so that another process can import them."""

import importlib
from collections.abc import Callable
from typing import Any

from cadenza.core.errors import ConfigurationError


def import_path(path: object, place: str) -> tuple[str, str]:
    """Return module and name in ``path``; nothing is imported.

    Args:
        path: ``"package.module:name"``.
        place: Where it stands in the configuration, for messages.

    Raises:
        ConfigurationError: Not such a path.
    """
    module, colon, name = path.partition(":") if isinstance(path, str) else ("", "", "")
    if not (module and colon and name):
        raise ConfigurationError(f"{place}: expected 'package.module:function', got {path!r}.")
    return module, name


def load_callable(path: object, place: str) -> Callable[..., Any]:
    """Return the function or class that ``path`` names.

    Args:
        path: ``"package.module:name"``.
        place: Where it stands in the configuration, for messages.

    Raises:
        ConfigurationError: Not such a path, or nothing callable there.
    """
    module, name = import_path(path, place)
    try:
        found: object = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"{place}: expected {path!r} to be importable, got: {error}; put its "
            "folder on sys.path."
        ) from error
    if not callable(found):
        raise ConfigurationError(
            f"{place}: expected something to call at {path!r}, got {type(found).__name__}."
        )
    return found
