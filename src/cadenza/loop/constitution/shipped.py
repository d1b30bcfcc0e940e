"""Which file of rules a run obeys."""

from pathlib import Path
from typing import Final

from cadenza.core.shipped_configs import shipped_config
from cadenza.loop.constitution.constitution import Constitution
from cadenza.loop.constitution.suites import suite_sizes

#: Where LeAgents keeps its rules, relative to the current folder.
LEAGENTS_PATH: Final = Path("configs/constitution.yaml")
_SHIPPED: Final = "loop/constitution.yaml"


def load_constitution(path: Path | None, instructions: Path | None = None) -> Constitution:
    """Return the constitution of a run.

    Args:
        path: File of rules. None, or LeAgents' default path where nothing lies there, means the
            rules that the package ships.
        instructions: File of suites that the run describes itself, whose tasks count; see
            `cadenza.loop.constitution.suites`. None for none.

    Raises:
        ConstitutionError: The file of rules is missing or malformed.
        ConfigurationError: The other file is.
    """
    rules = Constitution.from_yaml(rules_file(path) or shipped_config(_SHIPPED))
    return rules if instructions is None else rules.with_suites(suite_sizes(instructions))


def rules_file(path: Path | None) -> Path | None:
    """Return the file that ``path`` of a configuration means; None for the shipped rules."""
    if path is None or (path == LEAGENTS_PATH and not path.exists()):
        return None
    return path
