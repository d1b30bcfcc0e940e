"""Invariants of decisions, comparisons and seed ranges."""

from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.loop.config import LoopConfig, ThresholdConfig
from cadenza.loop.contracts.records import CheckpointRecord, EpisodeOutcome
from cadenza.loop.orchestrator.comparison import comparison_of, weigh
from cadenza.loop.orchestrator.decision import Decision, decide
from cadenza.loop.orchestrator.evidence import Evidence
from cadenza.loop.schedule import BLOCK, MAX_CYCLES, seed_range
from cadenza.loop.state import LoopState, PastCandidate
from tests.loop_fakes import judged_by_bounds as judge

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
BLESSED = CheckpointRecord(policy_type="bc", path="/given", cycle=-1, blessed=True)


def _weighed(outcomes, metric, blessed, *, order=None):
    """Return what is decided on the outcomes of both policies, which arrive in some order."""
    config = LoopConfig.from_document(
        {
            "run_name": "r",
            "seed_dataset": "local/d",
            "eval": {
                "n_episodes": 10,
                "max_episodes": 60,
                "metric": metric,
                "score_range": [-1.0, 1.0] if metric == "score" else None,
            },
            "thresholds": {
                "alpha": 0.2, "promote_delta": 0.1, "regression_delta": 0.1, "plateau_epsilon": 0.0,
                "min_promote": 0.2, "escalate_floor": 0.0,
            },
        },
        source="test",
    )  # fmt: skip
    state = LoopState(run_id="r", blessed=BLESSED if blessed else None)
    sides = [
        [
            EpisodeOutcome(task="t", seed=i, success=s, score=0.8 if s else -0.8)
            for i, s in enumerate(side)
        ]
        for side in zip(*outcomes, strict=True)
    ]
    if order is not None:
        sides = [[side[i] for i in order] for side in sides]
    return weigh(comparison_of(config, state), config, state, *sides)


@given(
    outcomes=pairs,
    metric=st.sampled_from(["success", "score", "wins"]),
    blessed=st.booleans(),
    data=st.data(),
)
@settings(max_examples=60)
def test_a_decision_is_that_of_the_pairs_up_to_its_stop_in_any_order_of_arrival(
    outcomes, metric, blessed, data
):
    verdict, found = _weighed(outcomes, metric, blessed)
    order = data.draw(st.permutations(range(len(outcomes))))
    assert _weighed(outcomes, metric, blessed, order=order) == (verdict, found)
    if verdict.decision is None:
        assert len(outcomes) < 60
        return
    stop = found.n_pairs
    assert stop % 10 == 0
    alone, evidence = _weighed(outcomes[:stop], metric, blessed)
    assert alone.decision is verdict.decision
    same = {"n_played": None}
    assert evidence.model_copy(update=same) == found.model_copy(update=same)
    for shorter in range(1, stop):
        assert _weighed(outcomes[:shorter], metric, blessed)[0].decision is None
    more = outcomes + data.draw(st.lists(st.sampled_from([(True, False), (False, True)])))
    assert _weighed(more[:60], metric, blessed)[0].decision is verdict.decision
    if verdict.decision is Decision.PROMOTE and blessed:
        assert found.difference >= 0.1
        assert 0.0 < found.lower <= found.difference <= found.upper


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
    (place, skip, count), (other_place, other_skip, other_count) = one, other
    first = seed_range(seed, *place, count=count, skip=skip)
    second = seed_range(seed, *other_place, count=other_count, skip=other_skip)
    assert first.start >= 0
    assert first.start + first.count <= 2**30
    overlap = max(skip, other_skip) < min(skip + count, other_skip + other_count)
    assert first.overlaps(second) == (place == other_place and overlap)
