"""Filters: whose actions may change, from snapshots to one solved step.

Start at:    `ego_only` (unknown partners) or `joint` (every agent cooperates); built through
             `cadenza.safety.cbf_qp.ExpCBFQP`.
Promise:     an action in its box, unchanged to the bit while no row is active, and never the
             nominal one after a failed solve.
May import:  `cbf`, `authority`, `passive`, `solvers`, contracts.  Must not import: `runtime`.
Layout:      arguments checked, rows built, `projection` solves, a record is made.
"""
