"""Invariants of decisions, evidence, sequential plans and seed ranges."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cadenza.loop.config import ThresholdConfig
from cadenza.loop.contracts.records import EpisodeOutcome
from cadenza.loop.orchestrator.decision import Decision, SequentialPlan, decide, judge
from cadenza.loop.orchestrator.evidence import Evidence, paired_evidence
from cadenza.loop.schedule import BLOCK, MAX_CYCLES, SeedLedger
from cadenza.loop.state import PastCandidate

rates = st.floats(0.0, 1.0)
histories = st.lists(rates, max_size=5)


@st.composite
def thresholds(draw) -> ThresholdConfig:
    promote, regression = draw(rates), draw(rates)
    return ThresholdConfig(
        promote_delta=promote,
        regression_delta=regression,
        plateau_epsilon=draw(st.floats(0.0, min(promote, regression))),
        plateau_cycles=draw(st.integers(1, 4)),
        escalate_floor=draw(rates),
        min_promote=draw(rates),
    )


@given(candidate=rates, baseline=rates, history=histories, limits=thresholds())
def test_decide_keeps_its_order(candidate, baseline, history, limits):
    decision = decide(candidate, baseline, history, limits)
    gain = candidate - baseline
    assert (decision is Decision.PROMOTE) == (gain >= limits.promote_delta)
    if decision is Decision.ROLLBACK:
        assert gain <= -limits.regression_delta
    if decision is Decision.ESCALATE:
        assert len(history) + 1 >= limits.plateau_cycles
        assert baseline >= limits.escalate_floor
        assert abs(gain) < limits.plateau_epsilon
    assert decision is not Decision.PROVISIONAL


pairs = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60)


def _verdict(outcomes, alpha, limits, **options) -> Decision | None:
    candidate, reference = (
        [EpisodeOutcome(task="t", seed=i, success=s) for i, s in enumerate(side)]
        for side in zip(*outcomes, strict=True)
    )
    found = paired_evidence(candidate, reference, metric="success", alpha=alpha, look=0, seed=0)
    assert found.lower is not None
    assert found.upper is not None
    assert found.difference is not None
    assert -1.0 <= found.lower <= found.difference <= found.upper <= 1.0
    assert found.lower < found.upper
    return judge(found, (), limits, **options).decision


@given(
    outcomes=pairs,
    alpha=st.sampled_from([0.3, 0.05, 1e-3, 1e-30]),
    limits=thresholds(),
    warm_up=st.booleans(),
    looks_left=st.integers(0, 2),
    data=st.data(),
)
def test_more_successes_never_take_a_promotion_nor_make_a_rollback(
    outcomes, alpha, limits, warm_up, looks_left, data
):
    failures = [i for i, (candidate, _) in enumerate(outcomes) if not candidate]
    assume(failures)
    chosen = data.draw(st.sets(st.sampled_from(failures), min_size=1))
    improved = [(c or i in chosen, r) for i, (c, r) in enumerate(outcomes)]
    options = {"warm_up": warm_up, "looks_left": looks_left}
    before = _verdict(outcomes, alpha, limits, **options)
    after = _verdict(improved, alpha, limits, **options)
    assert before is not Decision.PROMOTE or after is Decision.PROMOTE
    assert after is not Decision.ROLLBACK or before is Decision.ROLLBACK
    assert looks_left or (before is not None and after is not None)


@given(outcomes=pairs, alpha=st.sampled_from([0.2, 0.02]), limits=thresholds())
def test_exchanging_the_policies_exchanges_promotion_and_rollback(outcomes, alpha, limits):
    exchanged = [(r, c) for c, r in outcomes]
    mirrored = limits.model_copy(
        update={"promote_delta": limits.regression_delta, "regression_delta": limits.promote_delta}
    )
    options = {"warm_up": False, "looks_left": 0}
    decision = _verdict(outcomes, alpha, limits, **options)
    assert (decision is Decision.PROMOTE) == (
        _verdict(exchanged, alpha, mirrored, **options) is Decision.ROLLBACK
    )


shares = st.floats(-1.0, 1.0)
half_widths = st.none() | st.floats(0.0, 1.0)
past_candidates = st.builds(
    PastCandidate, score=rates, difference=st.none() | shares, half_width=half_widths
)


def _last_word(difference, half_width, baseline, history, limits) -> Decision | None:
    """Return what is decided on a candidate after the last look."""
    found = Evidence(
        candidate=baseline + difference,
        baseline=baseline,
        difference=difference,
        lower=None if half_width is None else difference - half_width,
        upper=None if half_width is None else difference + half_width,
        n_pairs=10,
        method="test",
    )
    return judge(found, history, limits, warm_up=False, looks_left=0).decision


@given(
    measured=st.lists(st.tuples(rates, half_widths), min_size=4, max_size=6), limits=thresholds()
)
def test_ties_on_any_initial_states_are_a_plateau_at_any_thresholds(measured, limits):
    *earlier, (baseline, half_width) = measured
    history = [PastCandidate(score=s, difference=0.0, half_width=w) for s, w in earlier]
    expected = Decision.ESCALATE if baseline >= limits.escalate_floor else Decision.ITERATE
    assert _last_word(0.0, half_width, baseline, history, limits) is expected


@given(
    history=st.lists(past_candidates, max_size=5),
    difference=shares,
    half_width=half_widths,
    limits=thresholds(),
)
def test_a_plateau_holds_no_difference_that_its_own_episodes_resolve(
    history, difference, half_width, limits
):
    decision = _last_word(difference, half_width, 1.0, history, limits)
    if decision is not Decision.ESCALATE:
        return
    earlier = limits.plateau_cycles - 1
    assert len(history) >= earlier
    for past in history[len(history) - earlier :]:
        assert past.difference is not None
        width = float("inf") if past.half_width is None else past.half_width
        assert abs(past.difference) <= max(width, limits.plateau_epsilon)
        if limits.promote_delta > 0.0:
            assert abs(past.difference) < limits.promote_delta


plans = st.builds(
    SequentialPlan,
    first=st.integers(1, 200),
    growth=st.floats(1.01, 10.0),
    max_episodes=st.integers(200, 5_000),
    alpha=st.floats(1e-4, 0.49),
)


@given(plan=plans, promoted=st.lists(st.booleans(), min_size=1, max_size=40))
def test_comparisons_that_do_not_promote_spend_no_more_than_the_runs_level(plan, promoted):
    spent = 0.0
    for better in promoted:
        alphas = plan.alphas(spent)
        assert len(alphas) == len(plan.sizes)
        assert all(alpha >= 0.0 for alpha in alphas)
        assert sum(alphas) == pytest.approx((plan.alpha - spent) / 2)
        spent += 0.0 if better else sum(alphas)
    assert spent <= plan.alpha * (1 + 1e-12)


places = st.tuples(
    st.sampled_from(["data", "harvest", "select", "compare"]), st.integers(0, MAX_CYCLES - 1)
)


@st.composite
def ranges(draw):
    """Return a place and a range in it."""
    skip = draw(st.one_of(st.just(0), st.integers(0, BLOCK - 1)))
    count = draw(st.one_of(st.just(BLOCK - skip), st.integers(1, BLOCK - skip)))
    return draw(places), skip, count


@given(seed=st.integers(0, 2**31 - 1), one=ranges(), other=ranges())
def test_ranges_of_different_places_are_disjoint(seed, one, other):
    ledger = SeedLedger(seed)
    (place, skip, count), (other_place, other_skip, other_count) = one, other
    first = ledger.range(*place, count=count, skip=skip)
    second = ledger.range(*other_place, count=other_count, skip=other_skip)
    assert first.start >= 0
    assert first.start + first.count <= 2**30
    overlap = max(skip, other_skip) < min(skip + count, other_skip + other_count)
    assert first.overlaps(second) == (place == other_place and overlap)
