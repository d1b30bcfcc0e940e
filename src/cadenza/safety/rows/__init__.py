"""Rows: the constraint one pair of balls puts on an action, as pure functions of numbers.

Start at:    `barrier` (safe set and default row), then `docs/safety.md` for the proof.
Promise:     scalar maths without state; the same formulas serve every filter.
May import:  contracts of `cadenza.safety`.  Must not import: filters, runtime.
Layout:      `barrier` (sampled-data row), `stale` (old packets), `wae` (continuous-time row),
             `authority` (what an agent's box reaches).
"""
