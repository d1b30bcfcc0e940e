import numpy as np
import pytest
from scipy import stats

from cadenza.core.errors import InputError
from cadenza.evaluation.results import EpisodeResult
from cadenza.evaluation.statistics.estimate import as_clusters, rate_estimate
from cadenza.evaluation.statistics.scores import (
    Design,
    ScoreTensor,
    aggregate,
    expanded_levels,
    performance_profile,
    probability_of_improvement,
    seed_spread,
    tail_mean,
    worst_case,
)


def rng(seed=0):
    return np.random.default_rng(seed)


def tensor(values, methods=("a",), families=()):
    """Return a full tensor of ``values``, (M, S, P, E)."""
    values = np.asarray(values, dtype=float)
    return ScoreTensor(
        values=values,
        mask=np.ones(values.shape, dtype=bool),
        methods=methods,
        seeds=tuple(range(values.shape[1])),
        partners=tuple("pqrstuvw"[: values.shape[2]]),
        families=families,
    )


def test_tensor_of_episodes_keeps_missing_cells_apart_from_zeros():
    played = [
        EpisodeResult(seed=s, episode_idx=i, initial_state_seed=i, success=i > 0, partner=p)
        for s, p, i in [(1, "p", 1), (1, "p", 0), (2, "q", 0), (1, "q", 2)]
    ]
    scores = ScoreTensor.from_episodes({"ours": played}, families={"p": "x", "q": "x"})
    assert scores.cells("ours") == pytest.approx(np.array([[0.5, 1.0], [np.nan, 0.0]]), nan_ok=True)
    assert scores.values[0, 0, 0].tolist() == [0.0, 1.0]  # in the order of the episodes
    assert [a.tolist() for a in scores.clusters("ours").values()] == [[0.0, 1.0, 1.0], [0.0]]
    assert scores.clusters("ours", ["q"])[1].tolist() == [1.0]
    assert scores.families == ("x", "x")
    with pytest.raises(InputError, match="expected one for every partner"):
        ScoreTensor.from_episodes({"ours": played}, families={"p": "x"})
    with pytest.raises(InputError, match="expected a method"):
        scores.cells("theirs")


def test_expanded_levels_equal_the_golden_values():
    assert [expanded_levels(s)[0] for s in (5, 10, 16)] == pytest.approx(
        [0.00095, 0.00855, 0.01386], abs=5e-6
    )


def test_aggregates_of_cells_equal_hand_calculations():
    cells = rng(1).random((6, 4))
    scores = tensor(cells[None, :, :, None])
    found = {
        name: aggregate(scores, "a", name, rng=rng(), replicates=200)
        for name in ("mean", "median", "iqm", "optimality_gap")
    }
    assert found["mean"].value == pytest.approx(cells.mean())
    assert found["median"].value == pytest.approx(np.median(cells.mean(axis=0)))
    assert found["iqm"].value == pytest.approx(stats.trim_mean(cells, 0.25, axis=None))
    assert found["optimality_gap"].value == pytest.approx((1 - cells).mean())
    for estimate in found.values():
        assert estimate.low < estimate.value < estimate.high
    assert found["iqm"].estimator == "iqm/cluster/expanded-percentile/v1"


def test_designs_differ_in_what_is_redrawn():
    shared = rng(2).random((8, 1, 1)) + 0.01 * rng(3).random((8, 5, 1))  # seeds differ, not cells
    scores = tensor(shared[None])

    def width(**options):
        e = aggregate(scores, "a", "iqm", rng=rng(), design=Design(**options), replicates=800)
        return e.high - e.low

    clustered, alone = width(), width(cluster=None)
    assert alone < 0.8 * clustered
    assert width(strata=()) == pytest.approx(clustered, rel=0.3)


def test_iqm_of_single_outcomes_is_refused_and_saturated_bounds_are_undefined():
    with pytest.raises(InputError, match="clipped at 25 % and 75 %"):
        aggregate(tensor(np.ones((1, 5, 3, 1))), "a", "iqm", rng=rng())
    saturated = aggregate(tensor(np.ones((1, 5, 3, 4))), "a", "iqm", rng=rng(), replicates=50)
    assert (saturated.value, saturated.low) == (1.0, None)
    assert "same value" in saturated.undefined_reason


def test_aggregate_leaves_cells_out_that_nobody_played():
    values = rng(4).random((1, 6, 3, 2))
    scores = tensor(values)
    scores.mask[0, 2, 1] = False
    cells = np.delete(values.mean(axis=3)[0].ravel(), 2 * 3 + 1)
    for name, expected in (("mean", cells.mean()), ("iqm", stats.trim_mean(cells, 0.25))):
        estimate = aggregate(scores, "a", name, rng=rng(), replicates=100)
        assert estimate.value == pytest.approx(expected)
        assert estimate.low < expected < estimate.high


def test_iqm_bounds_cover_the_population_trimmed_mean():
    covered = 0
    for run in range(300):
        scores = tensor(
            rng(run).standard_normal((1, 5, 4, 1)) + rng(run + 999).standard_normal((1, 5, 1, 1))
        )
        e = aggregate(scores, "a", "iqm", rng=rng(run), replicates=1999)
        covered += e.low <= 0.0 <= e.high
    assert covered / 300 >= 0.90  # .941 expected, three standard errors


def test_profile_band_holds_at_every_threshold_at_once():
    covered = 0
    for run in range(300):
        profile = performance_profile(
            tensor(rng(run).random((1, 10, 6, 1))), "a", rng=rng(run), replicates=300
        )
        truth = 1 - profile.thresholds  # uniform cells
        covered += bool(((profile.low <= truth) & (truth <= profile.high)).all())
    assert covered / 300 >= 0.91
    assert (np.diff(profile.share) <= 0).all()


def test_probability_of_improvement_equals_mann_whitney_per_partner():
    ours, theirs = rng(5).random((2, 6, 3, 1)).round(1)
    scores = tensor(np.stack([ours, theirs]), methods=("a", "b"))
    unpaired = probability_of_improvement(scores, "a", "b", paired=False)
    u = [stats.mannwhitneyu(ours[:, p, 0], theirs[:, p, 0]).statistic / 36 for p in range(3)]
    assert unpaired.value == pytest.approx(np.mean(u))
    assert unpaired.low < unpaired.value < unpaired.high
    paired = probability_of_improvement(scores, "a", "b")
    wins = ((ours > theirs) + 0.5 * (ours == theirs)).mean(axis=(1, 2))
    expected = stats.t.interval(0.95, 5, loc=wins.mean(), scale=stats.sem(wins))
    assert (paired.low, paired.high) == pytest.approx((max(0, expected[0]), min(1, expected[1])))
    mirrored = probability_of_improvement(scores, "b", "a", paired=False)
    assert mirrored.value == pytest.approx(1 - unpaired.value)


def test_seeds_that_always_win_leave_room_for_others():
    scores = tensor(np.stack([np.ones((5, 2, 1)), np.zeros((5, 2, 1))]), methods=("a", "b"))
    paired = probability_of_improvement(scores, "a", "b")
    assert (paired.value, paired.high) == (1.0, 1.0)
    assert 0.2 < paired.low < 0.7
    assert probability_of_improvement(scores, "a", "b", paired=False).low is None


def test_worst_case_pays_for_the_choice_of_partner():
    values = np.array([[[1] * 9 + [0], [1] * 4 + [0] * 6, [1] * 10]] * 5, dtype=float)[None]
    scores = tensor(values, families=("x", "x", "y"))
    worst = worst_case(scores, "a")
    alone = rate_estimate(scores.clusters("a", ["q"]), confidence=1 - 0.05 / 3)
    assert worst.names == ("q",)
    assert worst.estimate.value == pytest.approx(0.4)
    assert (worst.estimate.low, worst.estimate.high) == pytest.approx((alone.low, alone.high))
    assert worst_case(scores, "a", by="family").names == ("x",)
    two = worst_case(scores, "a", share=2 / 3)
    assert two.estimate.value == pytest.approx((0.4 + 0.9) / 2)
    assert (two.names, two.estimate.estimator) == (("q", "p"), "cvar-partner/cluster/bonferroni/v1")
    with pytest.raises(InputError, match="known families"):
        worst_case(tensor(values), "a", by="family")


def test_tail_mean_counts_a_part_of_a_value():
    assert tail_mean([0.9, 0.1, 0.5], 1.5) == pytest.approx((0.1 + 0.5 * 0.5) / 1.5)


def test_seed_spread_equals_the_hand_calculation_and_says_when_to_stop():
    clusters = as_clusters("x", {0: [1, 1, 1, 0], 1: [0, 0, 1, 0], 2: [1, 1, 0, 1]})
    # means .75 .25 .75, pooled 7/12: MSB = 4 (1/36 + 1/9 + 1/36) / 2 = 1/3; MSW = 9/4 / 9 = 1/4
    spread = seed_spread(clusters)
    between = (1 / 3 - 1 / 4) / 4
    assert spread.icc == pytest.approx(between / (between + 1 / 4))
    assert spread.design_effect == pytest.approx(1 + 3 * spread.icc)
    e = spread.useful_episodes
    width, endless = np.sqrt(between + 1 / 4 / e), np.sqrt(between)
    assert endless >= 0.95 * width
    assert spread.gain_of_twice_the_seeds == pytest.approx(1 - 2**-0.5)
    alike = seed_spread(as_clusters("x", {0: [1, 0], 1: [0, 1]}))
    assert (alike.icc, alike.useful_episodes) == (0.0, None)
    with pytest.raises(InputError, match="several episodes"):
        seed_spread(as_clusters("x", {0: [1], 1: [0]}))
