"""Modules that register something when they are imported: this package's own, and plug-ins.

Another package adds tasks, partners and algorithms through an entry point whose value is a module;
importing the module registers them. Each registry loads its own group at first use, so nobody has
to import a module for its side effect, in no process.
"""

import logging
from collections.abc import Iterable
from importlib import import_module
from importlib.metadata import entry_points
from typing import Final

_LOGGER = logging.getLogger(__name__)

#: Entry-point groups of tasks, partners, ego policies and algorithms.
GROUPS: Final = ("cadenza.tasks", "cadenza.partners", "cadenza.policies", "cadenza.algorithms")


class PlugIns:
    """What one registry imports before it answers its first question."""

    def __init__(self, group: str, built_in: Iterable[str] = ()) -> None:
        """Import nothing yet; ``built_in`` are modules of this package that register."""
        self._group = group
        self._built_in = tuple(built_in)
        self._failures: dict[str, str] = {}
        self._loaded = False

    def load(self) -> None:
        """Import everything once; a broken plug-in is not fatal, but logged and named later."""
        if self._loaded:
            return
        self._loaded = True  # first, because the modules may ask for names themselves
        for module in self._built_in:
            import_module(module)
        for plug_in in entry_points(group=self._group):
            try:
                plug_in.load()
            except (ImportError, AttributeError, TypeError, ValueError) as error:
                why = f"{type(error).__name__}: {error}"
                self._failures[plug_in.name] = why
                _LOGGER.warning(
                    "Plug-in %s of %s (%s) failed: %s",
                    plug_in.name,
                    self._group,
                    plug_in.value,
                    why,
                )

    def complaint(self) -> str:
        """Return a sentence for every plug-in that failed, to end an error about a name."""
        return "".join(f" Plug-in {name} failed: {why}." for name, why in self._failures.items())
