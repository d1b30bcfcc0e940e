"""LeRobot's environment: where it is, and what the names in commands stand for there.

The environment is not ours: it needs another torch and is found, never imported.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from cadenza.core.errors import ConfigurationError, MissingExtraError
from cadenza.core.foreign_pythons import foreign_python, python_variable, user_cache

#: Environment variable that names the interpreter.
VARIABLE: Final = python_variable("lerobot")
#: The file that LeRobot's interpreter starts for our scripts.
RUN_SCRIPT: Final = Path(__file__).resolve().parents[1] / "scripts" / "run.py"
#: Programs that are scripts of ours, by their word for `RUN_SCRIPT`. Training is one too, since
#: LeRobot's own refuses to start again.
_SCRIPTS: Final = {
    "cadenza-lerobot-collect": "collect",
    "cadenza-lerobot-merge": "merge",
    "cadenza-lerobot-select": "select",
    "lerobot-train": "train",
}
#: Programs that are LeRobot's own.
_TOOLS: Final = ("lerobot-edit-dataset", "lerobot-eval")


def lerobot_python(environ: Mapping[str, str]) -> Path | None:
    """Return the interpreter of LeRobot's environment, see `foreign_python`; None for none."""
    return foreign_python("lerobot", environ)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeRobotEnvironment:
    """An environment with LeRobot.

    Attributes:
        python: Its interpreter, absolute and not resolved: a link to another one is what makes it
            an environment.
        cache: Folder for what was found out about it.
    """

    python: Path
    cache: Path

    @classmethod
    def find(cls, environ: Mapping[str, str] | None = None) -> Self:
        """Return the environment that `lerobot_python` finds.

        Args:
            environ: Environment variables; None for this process's own.

        Raises:
            MissingExtraError: There is none.
        """
        environ = os.environ if environ is None else environ
        python = lerobot_python(environ)
        if python is None:
            raise MissingExtraError(
                f"LeRobot: expected an environment named by {VARIABLE} or in "
                f"{user_cache(environ) / 'environments'}, got none; run: python "
                "environments/install.py environments/lerobot.txt --needs-header linux/input.h"
            )
        return cls(python=python.absolute(), cache=user_cache(environ) / "lerobot")

    def tool(self, name: str) -> Path:
        """Return the executable of one of LeRobot's tools."""
        return self.python.with_name(name)


def lerobot_programs(environment: LeRobotEnvironment) -> dict[str, tuple[str, ...]]:
    """Return what the names of LeRobot's programs stand for, for the runner's program table.

    Raises:
        ConfigurationError: The environment has no LeRobot.
    """
    missing = [name for name in ("lerobot-train", *_TOOLS) if not environment.tool(name).is_file()]
    if missing:
        raise ConfigurationError(
            f"LeRobot: expected {missing[0]} beside {environment.python}, got no such file; "
            "install LeRobot there, or name another environment."
        )
    # -P as in a console script: modules lying in the current folder are not LeRobot's
    script = (str(environment.python), "-P", str(RUN_SCRIPT))
    return {
        **{name: (str(environment.tool(name)),) for name in _TOOLS},
        **{name: (*script, word) for name, word in _SCRIPTS.items()},
    }


def machine_has_gpu(environ: Mapping[str, str], *, device_folder: Path = Path("/dev")) -> bool:
    """Return whether LeRobot would find an NVIDIA GPU here."""
    hidden = environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    return not hidden and (device_folder / "nvidia0").exists()
