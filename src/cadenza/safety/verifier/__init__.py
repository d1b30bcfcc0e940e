"""Verifier: adversarial partners against a filter, thousands of episodes at a time.

Start at:    `verify` (configuration in, report out) and `VerifierConfig`.
Promise:     every action is judged by the true state with formulas of its own, distances are exact
             between the samples, bounds are exact binomial ones, equal seeds give equal bytes.
May import:  `core` and the rest of `safety`.  Must not import: any other folder.
Adding an opponent: one pure function in `adversaries.py` and its name in `ADVERSARIES`.
"""

import importlib
from typing import Any, Final

#: Short names and the modules that define them; imported at first use.
_EXPORTS: Final = {
    "ADVERSARIES": "adversaries",
    "EGO_NOMINALS": "ego_nominals",
    "VerificationReport": "report",
    "VerifierConfig": "config",
    "load_verifier_config": "config",
    "verify": "run",
}


def __getattr__(name: str) -> Any:
    """Import the module that defines ``name`` and return the object."""
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_EXPORTS[name]}"), name)
