"""Verifier: adversarial partners against a filter, thousands of episodes at a time.

Start at:    `verify` (configuration in, report out) and `VerifierConfig`; `attack` and
             `AttackConfig` for robots beside obstacles.
Promise:     every action is judged by the true state with formulas of its own, distances are exact
             between the samples, bounds are exact binomial ones, equal seeds give equal bytes.
May import:  `core` and the rest of `safety`.  Must not import: any other folder.
Adding an opponent: one pure function in `adversaries.py` and its name in `ADVERSARIES`.
"""

from typing import TYPE_CHECKING

from cadenza.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from .adversaries import ADVERSARIES as ADVERSARIES
    from .adversaries import EGO_NOMINALS as EGO_NOMINALS
    from .attacks import attack as attack
    from .config import AttackConfig as AttackConfig
    from .config import VerifierConfig as VerifierConfig
    from .config import load_verifier_config as load_verifier_config
    from .report import AttackReport as AttackReport
    from .report import VerificationReport as VerificationReport
    from .run import verify as verify
else:
    __dir__, __getattr__ = lazy_names(__name__)
