"""What the conformal rules promise over many steps, on simulated forecast errors."""

import numpy as np
import pytest

from cadenza.safety.conformal import update_lambda, update_margin
from cadenza.safety.state import SafetyState

PAIR = ("a", "b")
GAMMA, BOUND = 5.0, 100.0


def run_margin(scores, *, miss_rate=0.05, eta=0.01):
    """Return the misses and margins of the two-sided rule over a sequence of scores."""
    state = SafetyState({PAIR: 0.0}, epsilon=miss_rate, eta=eta)
    misses, margins = [], []
    for score in scores:
        margin = -state.lambda_[PAIR] / GAMMA
        misses.append(score > margin)
        margins.append(margin)
        update_margin(state, {PAIR: float(score)}, gamma=GAMMA, lambda_bound=BOUND)
    return np.array(misses), np.array(margins), -state.lambda_[PAIR] / GAMMA


@pytest.mark.parametrize("miss_rate", [0.05, 0.1, 0.3])
def test_margin_of_a_drifting_partner_keeps_its_coverage_within_two_points(miss_rate):
    rng = np.random.default_rng(1)
    n = 20_000
    # Errors grow threefold and fall again: a partner that changes its habits.
    scale = 0.05 * (2.0 - np.cos(2.0 * np.pi * np.arange(n) / n))
    misses, margins, _ = run_margin(scale * rng.normal(size=n), miss_rate=miss_rate)
    assert abs(misses.mean() - miss_rate) < 0.02
    assert margins[n // 2 - 500 : n // 2 + 500].mean() > 1.8 * margins[500:1500].mean()
    assert margins[-1000:].mean() < 0.7 * margins.max()  # it comes down again


@pytest.mark.parametrize("seed", range(5))
def test_margin_misses_obey_the_finite_sample_bound_for_any_scores(seed):
    rng = np.random.default_rng(seed)
    eta, miss_rate, n = 0.02, 0.1, 2000
    scores = np.where(rng.random(n) < 0.5, rng.normal(size=n), rng.exponential(0.3, size=n))
    scores[n // 3 : n // 2] += 1.0  # an adversarial burst
    misses, _, last = run_margin(scores, miss_rate=miss_rate, eta=eta)
    # Telescoped: sum of (m - miss_rate) eta <= q_K - q_0, with q_0 = 0.
    assert misses.mean() <= miss_rate + last / (eta * n) + 1e-12


def test_margin_with_a_flipped_sign_would_lose_its_coverage():
    rng = np.random.default_rng(2)
    state = SafetyState({PAIR: 0.0}, epsilon=0.05, eta=0.01)
    misses = []
    for score in 0.1 * rng.normal(size=5000):
        misses.append(score > -state.lambda_[PAIR] / GAMMA)
        # The mutant is rewarded for missing: it hands in the negative score.
        update_margin(state, {PAIR: float(-10.0 * misses[-1])}, gamma=GAMMA, lambda_bound=BOUND)
    assert np.mean(misses) > 0.4


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


def test_one_sided_rule_recovers_during_warm_up():
    losses = one_sided(0.05, 0.1, 200, start=1.0, in_warmup=True)
    assert losses[-50:].mean() < losses[:50].mean()
