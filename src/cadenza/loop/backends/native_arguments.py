"""Further arguments of the native back end's jobs: which there are, and how they are read."""

from collections.abc import Mapping, Sequence
from typing import Final

from cadenza.core.errors import ConfigurationError

#: Further flags that ``eval.env_args`` may give, by job.
FURTHER_FLAGS: Final[Mapping[str, frozenset[str]]] = {
    "collect": frozenset({"expert"}),
    "train": frozenset(),
    "evaluate": frozenset({"filter"}),
    "harvest": frozenset({"filter"}),
}


def parsed_arguments(source: str, arguments: Sequence[str]) -> dict[str, str]:
    """Return ``--key=value`` arguments as a mapping.

    Raises:
        ConfigurationError: One has another form, or a key comes twice.
    """
    found: dict[str, str] = {}
    for argument in arguments:
        name, equals, value = argument.removeprefix("--").partition("=")
        if not argument.startswith("--") or not equals or not name or name in found:
            raise ConfigurationError(
                f"{source}: expected distinct arguments of the form --key=value, got {argument!r}."
            )
        found[name] = value
    return found
