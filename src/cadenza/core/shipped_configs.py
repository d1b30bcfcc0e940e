"""Where the package finds its own sources and the configurations it ships."""

from pathlib import Path

from cadenza.core.errors import ConfigurationError

#: This package's folder; an installed wheel carries the configurations inside it.
_PACKAGE = Path(__file__).resolve().parents[1]


def source_checkout() -> Path | None:
    """Return the source tree this package runs from; None for an installation without one."""
    root = _PACKAGE.parents[1]
    return root if (root / "pyproject.toml").is_file() and (root / "src").is_dir() else None


def shipped_config(name: str) -> Path:
    """Return the path of a shipped configuration.

    Args:
        name: Path below ``configs``, e.g. ``"train/crossing.yaml"``.

    Raises:
        ConfigurationError: The package ships no such file.
    """
    checkout = source_checkout()
    path = (_PACKAGE / "_configs" if checkout is None else checkout / "configs") / name
    if not path.is_file():
        raise ConfigurationError(
            f"configuration {name!r}: expected the file {path}, got none; install the package "
            "again or run it from its source tree."
        )
    return path
