"""Read configuration files for commands; every failure is one readable `ConfigurationError`."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias, TypeVar

import typer

from cadenza.core.errors import ConfigurationError

if TYPE_CHECKING:
    from pydantic import BaseModel

    from cadenza.aht.config import EgoAHTConfig

Result = TypeVar("Result")
Settings: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE",
        help="Settings to change: values as in YAML, dots between section and key.",
        show_default=False,
    ),
]
Zoos: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option("--zoo", help="Zoo whose public members are the partners; repeat it."),
]


def read_training_config(
    path: Path, overrides: Sequence[str], zoos: Sequence[Path] = ()
) -> "EgoAHTConfig":
    """Return the training configuration ``path``, a file or a shipped one, with ``overrides``.

    ``pettingzoo:module:env`` is the shipped configuration ``train/pettingzoo`` with that task. With
    ``zoos`` the partners are their public members, and the task has their options.

    Raises:
        ConfigurationError: The file, an override or a value cannot be used.
    """
    from cadenza.aht.config import SWEEP_SECTION, EgoAHTConfig, read_settings
    from cadenza.benchmark.populations import beside_zoos

    path, changes = training_file(path, overrides)

    def read() -> EgoAHTConfig:
        settings = read_settings(config_path=path, overrides=changes)
        settings.pop(SWEEP_SECTION, None)
        if zoos and not any(word.lstrip("+~").startswith("env.options") for word in changes):
            settings.get("env", {}).pop("options", None)  # the file's give way to the zoo's
        return EgoAHTConfig.model_validate(beside_zoos(settings, zoos) if zoos else settings)

    return explained(path, EgoAHTConfig, read, overrides)


def training_file(path: Path, overrides: Sequence[str]) -> tuple[Path, list[str]]:
    """Return the file that ``path`` stands for, and the settings to read it with."""
    from cadenza.benchmark.tasks import PETTINGZOO_PREFIX
    from cadenza.core.shipped_configs import find_config

    changes = list(overrides)
    if str(path).startswith(PETTINGZOO_PREFIX):
        changes.insert(0, f"env.task='{path}'")
        path = Path("pettingzoo")
    return find_config(path, "train"), changes


def explained(
    path: Path, model: "type[BaseModel]", read: Callable[[], Result], typed: Sequence[str] = ()
) -> Result:
    """Return ``read()``, with validation errors turned into sentences about ``path``.

    Keys of ``model`` are suggested for misspelt ones; those of ``typed`` are the command line's.

    Raises:
        ConfigurationError: ``read`` raised an error about the file's content.
        MissingExtraError: SciPy is not installed.
    """
    from pydantic import ValidationError

    from cadenza.core.extras import load_extra
    from cadenza.loop.validation import problems

    load_extra("scipy.special")  # which every result needs: missed now, not after hours
    try:
        return read()
    except ValidationError as error:
        keys = {override.lstrip("+~").partition("=")[0] for override in typed}
        places = {".".join(map(str, detail["loc"])) for detail in error.errors()}
        source = "command line" if places <= keys else path
        raise ConfigurationError(f"{source}: {' '.join(problems(error, model))}") from error
