"""Wrappers: one heterogeneity axis each, around any environment with per-uid dict spaces.

Start at:    `action_repeat` (control rates), `texture_filter` (who sees which channel),
             `partner_id` (who the partner is), `comm_shaping` (what they hear from one another);
             `residual` (a policy corrects a law). Those of one task stand with it.
Promise:     a wrapper whose assumption fails raises at construction, never silently does nothing;
             attributes of the inner env stay reachable through every wrapper.
May import:  the rest of `envs`, except the tasks, `comm`, `core`.
"""
