"""The program table: which executables the names in commands stand for.

A command begins with a bare name, which the constitution knows; only here it becomes a path. No
name is looked up in ``PATH``, so that nobody's folder can put another program in its place.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Self

from cadenza.core.errors import ConfigurationError, UnknownNameError


class ProgramTable:
    """Programs by name: absolute executable and first arguments."""

    def __init__(self, programs: Mapping[str, Sequence[str]]) -> None:
        """Hold ``programs``.

        Raises:
            ConfigurationError: A name is no bare name, or its executable is no absolute path.
        """
        for name, prefix in programs.items():
            if not name or name.startswith(("-", ".")) or "/" in name:
                raise ConfigurationError(f"program {name!r}: expected a bare name.")
            if not prefix or not Path(prefix[0]).is_absolute():
                raise ConfigurationError(
                    f"program {name!r}: expected an absolute executable, got {list(prefix)}."
                )
        self._programs = MappingProxyType(
            {name: tuple(prefix) for name, prefix in programs.items()}
        )

    @classmethod
    def native(cls) -> Self:
        """Return the table of this installation: ``cadenza`` and nothing else."""
        # -P as in the console script: modules lying in the current folder are not ours
        return cls({"cadenza": (sys.executable, "-P", "-m", "cadenza")})

    @property
    def names(self) -> tuple[str, ...]:
        """Known names in order."""
        return tuple(sorted(self._programs))

    def extended(self, programs: Mapping[str, Sequence[str]]) -> "ProgramTable":
        """Return this table with further programs.

        Raises:
            ConfigurationError: A name is taken, or an entry is malformed.
        """
        taken = sorted(self._programs.keys() & programs.keys())
        if taken:
            raise ConfigurationError(f"programs: expected new names, got {taken} once more.")
        return ProgramTable({**self._programs, **programs})

    def resolve(self, command: Sequence[str]) -> tuple[str, ...]:
        """Return ``command`` with its name replaced; its arguments stay as they are.

        Raises:
            UnknownNameError: The table has no such name, or its executable is not there.
        """
        name = command[0] if command else ""
        prefix = self._programs.get(name)
        if prefix is None:
            raise UnknownNameError(
                f"program {name!r}: expected one of {', '.join(self.names)}; name one of these."
            )
        if not os.access(prefix[0], os.X_OK):
            raise UnknownNameError(
                f"program {name!r}: expected the executable {prefix[0]}, got none; install it."
            )
        return (*prefix, *command[1:])
