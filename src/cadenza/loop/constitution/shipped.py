"""The rules of a file, or those that the package ships."""

from pathlib import Path
from typing import Final

from cadenza.core.shipped_configs import shipped_config
from cadenza.loop.constitution.constitution import Constitution
from cadenza.loop.constitution.suites import suite_sizes

_SHIPPED: Final = "loop/constitution.yaml"


def load_constitution(path: Path | None, instructions: Path | None = None) -> Constitution:
    """Return a constitution.

    Args:
        path: File of rules. None for those that the package ships.
        instructions: File of suites that the run describes itself, whose tasks count; see
            `cadenza.loop.constitution.suites`. None for none.

    Raises:
        ConstitutionError: The file of rules is missing or malformed.
        ConfigurationError: The other file is.
    """
    rules = Constitution.from_yaml(path or shipped_config(_SHIPPED))
    return rules if instructions is None else rules.with_suites(suite_sizes(instructions))
