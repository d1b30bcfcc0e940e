"""What the conformal rules promise over many steps, on simulated forecast errors."""

import numpy as np
import pytest

from cadenza.safety.conformal import RuleSettings, make_rule, update_lambda
from cadenza.safety.contracts import SafetyState
from tests.campaigns import size

PAIR = ("a", "b")
GAMMA, BOUND = 5.0, 100.0


def run_margin(scores, *, miss_rate=0.05, eta=0.01):
    """Return the misses and margins of the two-sided rule over a sequence of scores."""
    return run_decaying(scores, p=0.0, miss_rate=miss_rate, eta=eta)


def run_decaying(scores, *, p, miss_rate=0.1, eta=0.05):
    """Return misses and margins of the rule whose k-th step is eta / k^p."""
    rule = make_rule("two_sided", RuleSettings(gamma=GAMMA, lambda_bound=BOUND, eta_decay=p))
    state = SafetyState({PAIR: 0.0}, epsilon=miss_rate, eta=eta)
    rule.begin(state.lambda_)
    misses, margins = [], []
    for score in scores:
        margin = -state.lambda_[PAIR] / GAMMA
        misses.append(score > margin)
        margins.append(margin)
        rule.update(state, {PAIR: float(score)})
    return np.array(misses), np.array(margins), -state.lambda_[PAIR] / GAMMA


@pytest.mark.parametrize("p", [0.3, 0.6, 0.9])
@pytest.mark.parametrize("seed", range(size(1, 3)))
def test_decaying_steps_obey_their_bound_for_any_scores(p, seed):
    rng = np.random.default_rng(seed)
    n = 2000
    scores = np.where(rng.random(n) < 0.5, rng.normal(size=n), rng.exponential(0.3, size=n))
    scores[n // 3 : n // 2] += 1.0
    misses, _, last = run_decaying(scores, p=p)
    assert misses.mean() <= 0.1 + last * n**p / (0.05 * n) + 1e-12


def test_decaying_steps_settle_on_the_quantile_of_stationary_scores():
    # Exponential scores of mean 0.1: their 90 % quantile is 0.1 ln 10 = 0.2303.
    quantile, n = 0.1 * np.log(10.0), 20_000
    scores = np.random.default_rng(0).exponential(0.1, size=n)
    misses, settled, _ = run_decaying(scores, p=0.6)
    _, hovering, _ = run_decaying(scores, p=0.0)
    tail = slice(n // 2, None)
    assert misses.mean() == pytest.approx(0.1, abs=0.005)
    assert settled[tail].mean() == pytest.approx(quantile, rel=0.02)
    assert settled[tail].var() < 0.02 * hovering[tail].var()
    assert settled[-n // 4 :].var() < settled[n // 4 : n // 2].var()


def test_constant_steps_are_the_rule_without_decay_bit_for_bit():
    scores = np.random.default_rng(4).normal(size=500)
    _, margins, _ = run_decaying(scores, p=0.0, miss_rate=0.05, eta=0.01)
    assert margins.tolist() == run_margin(scores)[1].tolist()


def one_sided(epsilon, eta, steps, start=0.0, *, in_warmup=False):
    rng = np.random.default_rng(0)
    state = SafetyState({PAIR: start}, epsilon=epsilon, eta=eta, warmup_steps_remaining=steps)
    losses = np.empty(steps)
    for k in range(steps):
        losses[k] = max(0.0, state.lambda_[PAIR] - rng.normal(0.0, 0.3))
        update_lambda(state, {PAIR: losses[k]}, in_warmup=in_warmup)
    return losses


def test_one_sided_rule_reaches_its_target_mean_loss():
    losses = one_sided(0.05, 0.05, 20_000)
    assert losses.mean() == pytest.approx(0.05, rel=0.05)
