"""Orchestrator: what to do next, and whether a policy is better.

Start at:    `LoopController` (a run), `build_loop` (a run from a configuration), `decide`.
Promise:     the store is the only state: a run that is killed anywhere goes on from there; what was
             decided, blessed and told is one transaction.
May import:  every folder of the loop.
Layout:      `machine` (pure), `steps` (the work), `loop` (the controller), `assembly`; `decision`,
             `evidence`; `proposer`; `preflight`.
Import time: names are imported at first use.
"""

from typing import Final

from cadenza.core.lazy_names import lazy_names

#: Names and the modules that define them; imported at first use.
_EXPORTS: Final = {
    "Constitution": "constitution",
    "ConstitutionError": "constitution",
    "CuratedProposer": "proposer",
    "Decision": "decision",
    "DeterministicProposer": "proposer",
    "LLMProposer": "proposer",
    "LoopController": "loop",
    "Proposer": "proposer",
    "RunSummary": "loop",
    "Verdict": "constitution",
    "build_loop": "assembly",
    "decide": "decision",
}

__dir__, __getattr__ = lazy_names(__name__, _EXPORTS)
