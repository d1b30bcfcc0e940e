"""Python's fork server, of which a program has one: new processes begin with what it imported.

Each process imports the program's main module before it does anything else; the variables of its
environment are those of the moment when the server started, until it is given others.
"""

import multiprocessing
import os
from collections.abc import Mapping
from multiprocessing import forkserver


def preload(*modules: str) -> None:
    """Let the fork server import modules besides what the program chose; a running one stays."""
    server = getattr(forkserver, "_forkserver", None)
    chosen: list[str] | None = getattr(server, "_preload_modules", None)
    if chosen is not None:
        new = [module for module in modules if module not in chosen]
        multiprocessing.get_context("forkserver").set_forkserver_preload([*chosen, *new])


def set_environment(variables: Mapping[str, str]) -> None:
    """Replace the environment variables of this process."""
    os.environ.clear()
    os.environ.update(variables)
