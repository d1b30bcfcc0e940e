"""Which rules a run obeys: the file that its configuration names, or those that the package ships.

Promise:  a file that is named and is not there is an error, never a reason to take other rules.
          Only LeAgents' default path, which a configuration for LeRobot means without naming it,
          gives way to the shipped rules where no file is.
"""

from pathlib import Path
from typing import Final

from cadenza.core.errors import ConfigurationError
from cadenza.loop.config import LoopConfig
from cadenza.loop.constitution import Constitution, load_constitution

#: Characters of a digest that are shown to people.
_DIGEST_WIDTH: Final = 12


def rules_file(config: LoopConfig) -> Path | None:
    """Return the file of rules that ``config`` means, absolute; None for the shipped rules.

    A file that it names itself need not be there; see `rules_of`.
    """
    path = config.constitution
    named = "constitution" in config.model_fields_set
    return None if path is None or not (named or path.exists()) else path.absolute()


def rules_of(config: LoopConfig) -> Constitution:
    """Return the rules that a run of ``config`` obeys.

    Raises:
        ConfigurationError: The file of rules that it names is not there, or ``data.instructions``
            names no file of suites.
        ConstitutionError: The file of rules is malformed.
    """
    path = rules_file(config)
    if path is not None and not path.is_file():
        raise ConfigurationError(
            f"constitution: expected a file of rules, got none at {path} (a relative path counts "
            "from the current folder); name the file, or remove the key to obey the shipped rules. "
            "A run that began under it takes its new place from `cadenza loop resume --config`."
        )
    return load_constitution(path, config.data.instructions)


def shown_rules(path: Path | str | None, sha256: str | None) -> str:
    """Return how rules are called before people.

    Args:
        path: Their file; None for the shipped rules.
        sha256: Their digest; None if it is not known.
    """
    digest = "" if sha256 is None else f", SHA-256 {sha256[:_DIGEST_WIDTH]}"
    return f"{path or 'the shipped ones'}{digest}"
