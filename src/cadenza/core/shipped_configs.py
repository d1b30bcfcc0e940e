"""Where the package finds its own sources and the configurations it ships."""

from contextlib import suppress
from pathlib import Path

from cadenza.core.errors import ConfigurationError, did_you_mean

#: This package's folder; an installed wheel carries the configurations inside it.
PACKAGE = Path(__file__).resolve().parents[1]


def source_checkout() -> Path | None:
    """Return the source tree this package runs from; None for an installation without one."""
    root = PACKAGE.parents[1]
    return root if (root / "pyproject.toml").is_file() and (root / "src").is_dir() else None


def configs_folder() -> Path:
    """Return the folder of the shipped configurations."""
    checkout = source_checkout()
    return PACKAGE / "_configs" if checkout is None else checkout / "configs"


def shipped_configs() -> list[str]:
    """Return the names of all shipped configurations, e.g. ``"train/crossing"``, sorted."""
    folder = configs_folder()
    paths = (path.relative_to(folder) for path in folder.rglob("*.yaml"))
    return sorted(path.with_suffix("").as_posix() for path in paths)


def shipped_config(name: str) -> Path:
    """Return the path of ``"train/crossing"``, also behind ``configs/`` and before ``.yaml``.

    Raises:
        ConfigurationError: The package ships no such configuration.
    """
    plain = name.removeprefix("configs/").removesuffix(".yaml")
    if plain not in shipped_configs():
        raise ConfigurationError(
            f"configuration {name!r}: expected one that the package ships, got another"
            f"{did_you_mean(plain, shipped_configs())}; `cadenza configs list` names them."
        )
    return configs_folder() / f"{plain}.yaml"


def find_config(path: Path, kind: str) -> Path:
    """Return ``path`` where it is a file, else the shipped configuration it names, else ``path``.

    Args:
        path: A file or a name as of `shipped_config`, of ``kind`` also without its folder.
        kind: Folder of the configurations that a command takes, e.g. ``"train"``.
    """
    if not path.is_file():
        for name in (path.as_posix(), f"{kind}/{path}"):
            with suppress(ConfigurationError):
                return shipped_config(name)
    return path
