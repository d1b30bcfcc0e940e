"""Which file of rules a run obeys."""

from pathlib import Path
from typing import Final

from cadenza.core.shipped_configs import shipped_config
from cadenza.loop.constitution.constitution import Constitution

#: Where LeAgents keeps its rules, relative to the current folder.
LEAGENTS_PATH: Final = Path("configs/constitution.yaml")
_SHIPPED: Final = "loop/constitution.yaml"


def load_constitution(path: Path | None) -> Constitution:
    """Return the constitution of a run.

    Args:
        path: File of rules. None, or LeAgents' default path where nothing lies there, means the
            rules that the package ships.

    Raises:
        ConstitutionError: The file is missing or malformed.
    """
    return Constitution.from_yaml(rules_file(path) or shipped_config(_SHIPPED))


def rules_file(path: Path | None) -> Path | None:
    """Return the file that ``path`` of a configuration means; None for the shipped rules."""
    if path is None or (path == LEAGENTS_PATH and not path.exists()):
        return None
    return path
