"""Starting a script as a module, ``python -m cadenza.loop.scripts.NAME``, as LeAgents does.

The loop itself starts `run.py`, which needs no `cadenza` in LeRobot's environment; this needs both
in one.
"""

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn


def start(word: str, main: Callable[[list[str]], int]) -> NoReturn:
    """Run a script with the words of this process and end with its exit code.

    Args:
        word: Name of the script for `run.py`.
        main: The script.
    """
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    try:
        sys.exit(main(sys.argv[1:]))
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "lerobot":
            raise
    run = Path(__file__).resolve().with_name("run.py")
    sys.stderr.write(
        f"{word}: expected LeRobot in the environment of {sys.executable}, got none; start "
        f"`PYTHON {run} {word} ...` with the Python that has it.\n"
    )
    sys.exit(2)
