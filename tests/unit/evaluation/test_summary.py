import pytest

from cadenza.core.errors import InputError
from cadenza.core.seeding import derive_substream
from cadenza.evaluation.bootstrap import cluster_bootstrap
from cadenza.evaluation.results import LEGACY_ESTIMATOR, BundleSummary, EpisodeResult
from cadenza.evaluation.statistics.estimate import KORN_GRAUBARD
from cadenza.evaluation.summary import SummarySettings, compute_summary, recompute_summary

SETTINGS = SummarySettings(headline_condition="on", comparison=("on", "off"))


def episode(condition, partner, seed, index, *, success, contact) -> EpisodeResult:
    return EpisodeResult(
        seed=seed,
        episode_idx=index,
        initial_state_seed=index,
        success=success,
        condition=condition,
        partner=partner,
        contact=contact,
        n_steps=100,
        min_distance_m=0.3 if contact else 0.5 + 0.01 * index,
        interventions=10 if condition == "on" else None,
        fallback_fired=int(condition == "on" and index == 0),
    )


def two_conditions() -> list[EpisodeResult]:
    """Return 2 partners x 10 seeds x 4 episodes; without the filter, episode 0 of q touches."""
    return [
        episode(
            condition, partner, seed, index,
            success=(index > 0 or seed > 2) and (condition, partner, index) != ("off", "q", 0),
            contact=(condition, partner, index) == ("off", "q", 0),
        )
        for condition in ("on", "off")
        for partner in ("p", "q")
        for seed in range(10)
        for index in range(4)
    ]  # fmt: skip


def test_summary_headline_is_the_rate_of_its_condition():
    summary = compute_summary(two_conditions(), SETTINGS)
    # filter on: episode 0 fails for seeds 0, 1, 2 with both partners: 6 of 80
    assert summary.n_episodes == 160
    assert summary.success_mean == pytest.approx(74 / 80)
    assert summary.success_ci_low < 74 / 80 < summary.success_ci_high
    # (seed, partner) rates: six at 0.75, fourteen at 1; the middle ten of twenty hold one 0.75
    assert summary.success_iqm == pytest.approx((0.75 + 9 * 1.0) / 10)
    assert summary.estimator == "rate/cluster/beta-binomial/v1"
    assert {c.difference.estimator for c in summary.comparisons} == {
        "difference/paired-cluster/t-mover/v1"
    }
    assert summary.n_resamples == 0


def test_summary_cells_hold_counts_of_each_condition_and_partner():
    summary = compute_summary(two_conditions(), SETTINGS)
    assert [(c.condition, c.partner) for c in summary.cells] == [
        ("off", "p"), ("off", "q"), ("on", "p"), ("on", "q"),
    ]  # fmt: skip
    off_q, on_q = summary.cells[1], summary.cells[3]
    assert off_q.contact.value == pytest.approx(0.25)
    assert on_q.contact.value == 0.0
    assert 1 - 0.025 ** (1 / 40) < on_q.contact.high < 1 - 0.025 ** (1 / 10)  # alike, unknown
    assert (off_q.min_distance_m, on_q.min_distance_m) == (0.3, 0.5)
    assert (on_q.fallback_fired, on_q.interventions, off_q.interventions) == (10, 400, None)
    assert on_q.n_steps == 4000


def test_summary_compares_success_and_contact_pooled_and_per_partner():
    summary = compute_summary(two_conditions(), SETTINGS)
    rows = {(c.metric, c.partner): c.difference.value for c in summary.comparisons}
    assert rows == pytest.approx(
        {
            ("success", None): 7 / 80,  # q, episode 0 of seeds 3..9
            ("success", "p"): 0.0,
            ("success", "q"): 7 / 40,
            ("contact", None): -10 / 80,
            ("contact", "p"): 0.0,
            ("contact", "q"): -10 / 40,
        }
    )
    assert all(c.difference.low < c.difference.high for c in summary.comparisons)


def test_summary_with_resamples_uses_bca_and_depends_on_its_root_seed():
    settings = SummarySettings(n_resamples=1000, comparison=("on", "off"))
    first = compute_summary(two_conditions(), settings)
    other = compute_summary(
        two_conditions(),
        SummarySettings(n_resamples=1000, bootstrap_root_seed=1, comparison=("on", "off")),
    )
    assert first.comparisons[0].difference.estimator == "mean/paired-cluster/bca/v1"
    assert first.comparisons[0].difference != other.comparisons[0].difference


def test_summary_compares_every_treatment_with_the_baseline():
    late = [e.model_copy(update={"condition": "late"}) for e in two_conditions()[:40]]
    settings = SummarySettings(comparison=("on", "late", "off"))
    summary = compute_summary([*two_conditions(), *late], settings)
    alone = compute_summary(two_conditions(), SETTINGS)
    pairs = {(c.treatment, c.baseline) for c in summary.comparisons}
    assert pairs == {("on", "off"), ("late", "off")}
    assert [c for c in summary.comparisons if c.treatment == "on"] == alone.comparisons
    assert recompute_summary(summary, [*two_conditions(), *late]) == summary


def test_summary_without_contact_records_compares_success_only():
    episodes = [e.model_copy(update={"contact": None}) for e in two_conditions()]
    summary = compute_summary(episodes, SETTINGS)
    assert {c.metric for c in summary.comparisons} == {"success"}
    assert all(cell.contact is None for cell in summary.cells)


def test_summary_of_nothing_is_undefined_with_a_reason():
    summary = compute_summary([])
    assert (summary.n_episodes, summary.success_mean) == (0, None)
    assert summary.undefined_reason == "no episodes"
    assert BundleSummary.model_validate_json(summary.model_dump_json()) == summary


@pytest.mark.parametrize("resamples", [0, 1000])
def test_recomputed_summary_equals_the_stored_one(resamples):
    settings = SummarySettings(
        n_resamples=resamples,
        bootstrap_root_seed=3,
        headline_condition="on",
        comparison=("on", "off"),
    )
    stored = compute_summary(two_conditions(), settings)
    reread = BundleSummary.model_validate_json(stored.model_dump_json())
    assert recompute_summary(reread, two_conditions()) == stored


def test_recomputed_summary_of_an_older_bundle_uses_its_own_bootstrap():
    episodes = two_conditions()
    groups: dict[int, list[float]] = {}
    for e in episodes:
        groups.setdefault(e.seed, []).append(float(e.success))
    stream = derive_substream("evaluation.bundle_bootstrap", root_seed=5)
    expected = cluster_bootstrap(groups, n_resamples=1000, rng=stream.default_rng())
    stored = BundleSummary(
        n_episodes=160,
        success_mean=expected.mean,
        success_iqm=expected.iqm,
        success_ci_low=expected.ci_low,
        success_ci_high=expected.ci_high,
        n_resamples=1000,
        bootstrap_root_seed=5,
    )
    assert stored.estimator == LEGACY_ESTIMATOR
    assert recompute_summary(stored, episodes) == stored
    assert recompute_summary(stored, []).undefined_reason == "no episodes"


def test_recomputed_summary_of_the_clustered_exact_interval_keeps_its_figures():
    settings = SummarySettings(
        headline_condition="on", comparison=("on", "off"), estimator=KORN_GRAUBARD
    )
    stored = compute_summary(two_conditions(), settings)
    assert (stored.success_ci_low, stored.success_ci_high) == pytest.approx(
        (0.7886, 0.9857), abs=1e-4
    )  # as written before rates had the beta-binomial interval
    assert stored.cells[3].contact.high == pytest.approx(1 - 0.025 ** (1 / 40))
    assert stored.comparisons[0].difference.estimator == "mean/paired-cluster/student-t/v1"
    assert recompute_summary(stored, two_conditions()) == stored


def test_summary_of_one_seed_is_recomputed():
    episodes = [e for e in two_conditions() if e.seed == 4]
    stored = compute_summary(episodes, SETTINGS)
    assert stored.estimator == "rate/one-seed/clopper-pearson/v1"
    assert recompute_summary(stored, episodes) == stored


def test_recomputed_summary_of_an_unknown_estimator_is_refused():
    stored = compute_summary(two_conditions()).model_copy(update={"estimator": "magic/v9"})
    with pytest.raises(
        InputError, match=r"expected one of .*'rate/cluster/korn-graubard/v1', .*'magic/v9'"
    ):
        recompute_summary(stored, two_conditions())
