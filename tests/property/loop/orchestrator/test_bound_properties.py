"""Invariants of bounds of mean scores and of the first blessing."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cadenza.loop.config import ThresholdConfig
from cadenza.loop.orchestrator.decision import Decision, SequentialPlan, judge
from cadenza.loop.orchestrator.evidence import Evidence, mean_bounds

scores = st.lists(
    st.floats(-1000.0, 1000.0).map(lambda x: round(x, 3)), min_size=2, max_size=25
).map(np.array)
tails = st.sampled_from([0.3, 0.05, 0.001])
few = settings(max_examples=25)


def bounds(values, tail):
    lower, upper = mean_bounds(values, tail=tail, rng=np.random.default_rng(1))
    return -np.inf if lower is None else lower, np.inf if upper is None else upper


@few
@given(values=scores, tail=tails)
def test_bounds_lie_around_the_mean_and_exchange_with_the_sign(values, tail):
    lower, upper = bounds(values, tail)
    assert lower <= values.mean() + 1e-9 * np.abs(values).max()
    assert upper >= values.mean() - 1e-9 * np.abs(values).max()
    assert bounds(-values, tail) == (-upper, -lower)


@few
@given(values=scores, tail=tails, factor=st.sampled_from([0.25, 8.0]), shift=st.integers(-500, 500))
def test_bounds_follow_the_unit_of_the_score(values, tail, factor, shift):
    expected = [factor * bound + shift for bound in bounds(values, tail)]
    assume(np.ptp(values) > 1e-2)
    assert bounds(factor * values + shift, tail) == pytest.approx(expected, rel=1e-6, abs=1e-3)


@few
@given(values=scores)
def test_sum_within_the_root_of_the_squares_is_never_shown_to_be_positive(values):
    total, root = values.sum(), np.linalg.norm(values)
    if total > root:  # move it to the edge
        values = values - (total - root) / values.size
        assume(values.sum() <= np.linalg.norm(values))
    assert bounds(values, 0.05)[0] <= 0.0


limits = st.builds(ThresholdConfig, min_promote=st.floats(0.0, 1.0))


@given(
    difference=st.floats(-1.0, 1.0),
    width=st.floats(0.0, 1.0),
    own=st.tuples(st.none() | st.floats(-2.0, 2.0), st.none() | st.floats(-2.0, 2.0)),
    thresholds=limits,
    looks_left=st.integers(0, 1),
    warm_up=st.booleans(),
)
def test_nothing_is_blessed_first_that_is_not_shown_to_reach_the_bar(
    difference, width, own, thresholds, looks_left, warm_up
):
    found = Evidence(
        candidate=0.5 + difference, baseline=0.5, difference=difference, lower=difference - width,
        upper=difference + width, candidate_lower=own[0], candidate_upper=own[1], n_pairs=10,
        method="test",
    )  # fmt: skip
    settings = {"warm_up": warm_up, "looks_left": looks_left}
    first = judge(found, (), thresholds, provisional=True, **settings).decision
    if first is Decision.PROMOTE:
        assert own[0] is not None
        assert own[0] >= thresholds.min_promote
    later = judge(found, (), thresholds, provisional=False, **settings).decision
    assert later is not Decision.PROVISIONAL
    assert (first is Decision.ROLLBACK) == (later is Decision.ROLLBACK)
    assert looks_left or None not in (first, later)


@given(
    first=st.integers(1, 200),
    growth=st.floats(1.01, 10.0),
    more=st.integers(0, 2_000),
    alpha=st.floats(1e-4, 0.49),
    cycles=st.integers(1, 40),
)
def test_levels_of_first_blessings_sum_to_no_more_than_the_runs_level(
    first, growth, more, alpha, cycles
):
    plan = SequentialPlan(first=first, growth=growth, max_episodes=first + more, alpha=alpha)
    levels = [plan.bar_alphas(cycle) for cycle in range(cycles)]
    assert {len(level) for level in levels} == {len(plan.sizes)}
    assert sum(map(sum, levels)) == pytest.approx(alpha * cycles / (cycles + 1))
