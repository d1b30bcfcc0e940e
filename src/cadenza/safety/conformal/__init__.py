"""Conformal layer: turns forecast errors of the safe set into the slack of the rows.

Start at:    `ConformalRule` (the Protocol), `make_rule` (name in, rule out) and
             `docs/conformal.md` (what each rule promises, with measured coverage).
Score:       one pair, after a forecast fell due, m/s:  s = h(forecast) - h(now), h the barrier of
             the pair. Positive: the world is less safe than forecast.
Rules:       `two_sided` (adaptive conformal inference on a margin), `dtaci` (several step sizes
             weighed against each other) and `huriot_sibai` (one-sided, upstream's). The first two
             only tighten: lambda = -gamma q with a margin q >= 0; gamma turns m/s into m/s^2.
May import:  `core`, and the barrier, pairs, snapshots and state of this folder.  Must not import:
             filters, runtime, driver.
"""

from typing import Final

from cadenza.core.lazy_names import lazy_names

#: Public names and the modules that define them; imported at first use.
_EXPORTS: Final = {
    "SCORE_TOLERANCE": "margin",
    "WARMUP_FACTOR": "margin",
    "ConformalRule": "rules",
    "DtaciTracker": "dtaci",
    "RuleSettings": "rules",
    "SUPPORTED_RULES": "rules",
    "compute_per_pair_loss": "rules",
    "compute_prediction_gap_for_pairs": "rules",
    "constant_velocity_predict": "rules",
    "make_rule": "rules",
    "reset_on_partner_swap": "rules",
    "update_lambda": "rules",
    "update_lambda_from_predictor": "rules",
}

__dir__, __getattr__ = lazy_names(__name__, _EXPORTS)
