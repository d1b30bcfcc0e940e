"""Filters: whose actions may change, from snapshots to one solved step.

Start at:    `EgoOnlyCBFQP` (unknown partners) or `CentralizedCBFQP` (every agent cooperates);
             built through `cadenza.safety.cbf_qp.ExpCBFQP`.
Promise:     an action in its box, unchanged to the bit while no row is active, and never the
             nominal one after a failed solve.
May import:  `cbf`, `authority`, `passive`, `solvers`, contracts.  Must not import: `runtime`.
Layout:      arguments checked, rows built, `projection` solves, a record is made.
"""

from typing import TYPE_CHECKING

from cadenza.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from .ego_only import EgoOnlyCBFQP as EgoOnlyCBFQP
    from .joint import CentralizedCBFQP as CentralizedCBFQP
    from .joint import SharedControlCBFQP as SharedControlCBFQP
else:
    __dir__, __getattr__ = lazy_names(__name__)
