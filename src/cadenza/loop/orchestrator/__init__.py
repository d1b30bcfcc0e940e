"""Orchestrator: what to do next, and whether a policy is better.

Start at:    `LoopController` (a run), `build_loop` (a run from a configuration), `decide`.
Promise:     the store is the only state: a run that is killed anywhere goes on from there; what was
             decided, blessed and told is one transaction.
May import:  every folder of the loop.
Layout:      `machine` (pure), `steps` (the work), `loop` (the controller), `assembly`; `decision`,
             `evidence`; `proposer`; `preflight`.
Import time: names are imported at first use.
"""

from typing import TYPE_CHECKING

from cadenza.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from .assembly import build_loop as build_loop
    from .constitution import Constitution as Constitution
    from .constitution import ConstitutionError as ConstitutionError
    from .constitution import Verdict as Verdict
    from .decision import Decision as Decision
    from .decision import decide as decide
    from .loop import LoopController as LoopController
    from .loop import RunSummary as RunSummary
    from .proposer import CuratedProposer as CuratedProposer
    from .proposer import DeterministicProposer as DeterministicProposer
    from .proposer import LLMProposer as LLMProposer
    from .proposer import Proposer as Proposer
else:
    __dir__, __getattr__ = lazy_names(__name__)
