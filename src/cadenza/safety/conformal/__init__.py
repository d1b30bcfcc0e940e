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

from typing import TYPE_CHECKING

from cadenza.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from .dtaci import DtaciTracker as DtaciTracker
    from .margin import SCORE_TOLERANCE as SCORE_TOLERANCE
    from .margin import WARMUP_FACTOR as WARMUP_FACTOR
    from .rules import SUPPORTED_RULES as SUPPORTED_RULES
    from .rules import ConformalRule as ConformalRule
    from .rules import RuleSettings as RuleSettings
    from .rules import compute_per_pair_loss as compute_per_pair_loss
    from .rules import compute_prediction_gap_for_pairs as compute_prediction_gap_for_pairs
    from .rules import constant_velocity_predict as constant_velocity_predict
    from .rules import make_rule as make_rule
    from .rules import reset_on_partner_swap as reset_on_partner_swap
    from .rules import update_lambda as update_lambda
    from .rules import update_lambda_from_predictor as update_lambda_from_predictor
else:
    __dir__, __getattr__ = lazy_names(__name__)
