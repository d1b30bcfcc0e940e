"""The file that LeRobot's Python starts: runs one of the scripts that lie beside it.

    python run.py NAME [--flag=value ...]

The folder of the scripts is loaded as a package of its own, so that none of its modules can stand
in the way of a module of LeRobot's environment.
"""

import importlib
import importlib.util
import logging
import sys
from pathlib import Path
from typing import Final

_PACKAGE: Final = "cadenza_lerobot_scripts"
#: Scripts by their name on the command line.
SCRIPTS: Final = {
    "collect": "collect_rollouts",
    "describe": "describe_environment",
    "merge": "merge_datasets",
    "select": "select_episodes",
    "train": "train_policy",
}


def main(words: list[str]) -> int:
    """Run the script that the first of ``words`` names; return its exit code."""
    name = words[0] if words else ""
    if name not in SCRIPTS:
        sys.stderr.write(f"run.py: expected one of {', '.join(SCRIPTS)}, got {name!r}\n")
        return 2
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    folder = Path(__file__).resolve().parent
    spec = importlib.util.spec_from_file_location(
        _PACKAGE, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None:
        sys.stderr.write(f"run.py: expected scripts in {folder}, got none\n")
        return 2
    package = importlib.util.module_from_spec(spec)
    sys.modules[_PACKAGE] = package
    spec.loader.exec_module(package)
    script = importlib.import_module(f"{_PACKAGE}.{SCRIPTS[name]}")
    return int(script.main(words[1:]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
