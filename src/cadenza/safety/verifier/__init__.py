"""Verifier: adversarial partners against a filter, thousands of episodes at a time.

Start at:    `verify` (configuration in, report out) and `VerifierConfig`.
Promise:     every action is judged by the true state with formulas of its own, distances are exact
             between the samples, bounds are exact binomial ones, equal seeds give equal bytes.
May import:  `core` and the rest of `safety`.  Must not import: any other folder.
Adding an opponent: one pure function in `adversaries.py` and its name in `ADVERSARIES`.
"""

from typing import Final

from cadenza.core.lazy_names import lazy_names

#: Short names and the modules that define them; imported at first use.
_EXPORTS: Final = {
    "ADVERSARIES": "adversaries",
    "EGO_NOMINALS": "adversaries",
    "VerificationReport": "report",
    "VerifierConfig": "config",
    "load_verifier_config": "config",
    "verify": "run",
}

__dir__, __getattr__ = lazy_names(__name__, _EXPORTS)
