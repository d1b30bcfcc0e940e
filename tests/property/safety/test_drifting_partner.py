"""Coverage of the rules, in the runtime, against a partner that is calm, erratic and calm again.

Coverage is judged on the signed score: the share of steps whose score exceeds the margin in force.
It must come within two points of the miss rate asked for, over the run, wherever the quantile of
the scores is positive. (Where it is not, a margin of 0 already misses less often than asked.)
"""

import numpy as np
import pytest

from cadenza.safety.conformal import SCORE_TOLERANCE
from tests.campaigns import size
from tests.property.safety.drifting import run

STEPS = 4500
RULES = {"two_sided": {}, "dtaci": {"conformal_rule": "dtaci"}}


@pytest.mark.parametrize("miss_rate", [0.05, 0.1, 0.2])
@pytest.mark.parametrize("rule", RULES)
def test_drifting_partner_is_covered_within_two_points(rule, miss_rate):
    for seed in range(size(1, 2)):
        scores, margins, _ = run(seed, STEPS, miss_rate=miss_rate, **RULES[rule])
        misses = scores > margins + SCORE_TOLERANCE
        assert abs(misses.mean() - miss_rate) < 0.02
        calm, erratic, again = np.array_split(margins, 3)
        assert erratic.mean() > 2.5 * calm.mean()  # it rises ...
        assert again.mean() < 0.5 * erratic.mean()  # ... and falls
        for part in np.array_split(misses, 3):
            assert abs(part.mean() - miss_rate) < 0.04  # a regime includes the way into it


@pytest.mark.parametrize("miss_rate", [0.05, 0.2])
@pytest.mark.parametrize("seed", range(size(2, 4)))
def test_two_sided_rule_obeys_its_bound_in_every_run(seed, miss_rate):
    eta = 0.02
    scores, margins, last = run(seed, 1500, miss_rate=miss_rate, eta=eta, n_warmup_steps=0)
    misses = scores > margins + SCORE_TOLERANCE
    # (1/K) sum m <= epsilon + (q_K - q_0) / (eta K), q_0 = 0.
    assert misses.mean() <= miss_rate + last / (eta * len(misses)) + 1e-12
    # And an equality as long as the margin does not touch 0 or its upper end.
    if margins[200:].min() > 0.0:
        tail = misses[200:].mean() - miss_rate
        assert tail == pytest.approx((last - margins[200]) / (eta * len(misses[200:])), abs=1e-9)
