import re
from itertools import takewhile
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from cadenza.core.errors import InputError
from cadenza.core.seeding import derive_substream
from cadenza.loop.config import ThresholdConfig
from cadenza.loop.contracts.records import EpisodeOutcome
from cadenza.loop.orchestrator import score_characteristics
from cadenza.loop.orchestrator.decision import Decision, judge
from cadenza.loop.orchestrator.evidence import paired_evidence
from cadenza.loop.orchestrator.first_blessing import FIRST_RATES, first_blessing
from cadenza.loop.orchestrator.operating_characteristics import (
    ALIKE,
    SHARED,
    Scenario,
    main,
    plan_of,
    simulate,
)
from cadenza.loop.orchestrator.score_characteristics import BETTER, LEVEL, simulate_scores
from cadenza.loop.orchestrator.sequential_plan import RECOMMENDED_MAX_EPISODES, SequentialPlan

#: Runs per cell, and the probability with which a true claim may fail its test.
RUNS = 2_000
ERROR = 1e-3


def simulated(scenario: Scenario, cycles: int, budget: int = RECOMMENDED_MAX_EPISODES):
    rng = derive_substream(f"test.{scenario}.{cycles}", root_seed=1).default_rng()
    return simulate(scenario, plan_of(cycles, budget), ThresholdConfig(), runs=RUNS, rng=rng)


def test_pair_probabilities_have_their_closed_forms():
    # Alike states give q (1 - p) and p (1 - q), shared ones have E[p(u)^2] = p^2 + p (1 - p) / 1.5.
    assert Scenario(reference=0.5, gain=0.1).pair_probabilities == pytest.approx((0.3, 0.2))
    shared = Scenario(reference=0.3, concentration=SHARED).pair_probabilities
    assert shared == pytest.approx((0.3 - (0.09 + 0.21 / 1.5),) * 2, abs=2e-4)


def test_shared_difficulty_matches_a_simulation_of_single_states():
    scenario = Scenario(reference=0.3, gain=0.1, concentration=2.0)
    rng = np.random.default_rng(0)
    ease = rng.uniform(size=400_000)
    candidate = rng.uniform(size=ease.size) < stats.beta.ppf(ease, 0.8, 1.2)
    reference = rng.uniform(size=ease.size) < stats.beta.ppf(ease, 0.6, 1.4)
    only = ((candidate & ~reference).mean(), (reference & ~candidate).mean())
    assert scenario.pair_probabilities == pytest.approx(only, abs=0.004)  # 5 standard errors


@pytest.mark.parametrize("cycles", [3, 10])
@pytest.mark.parametrize("concentration", [ALIKE, SHARED])
@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5, 0.8, 0.95])
def test_runs_of_equal_policies_promote_in_at_most_five_percent(rate, concentration, cycles):
    result = simulated(Scenario(reference=rate, concentration=concentration), cycles)
    # If the true share is at most 5 %, more than this many happen with probability < ERROR.
    assert result.promoted <= stats.binom.ppf(1 - ERROR, RUNS, 0.05)


def test_looks_that_spend_the_whole_level_each_would_fail_the_claim():
    # the mutant: every look of every comparison at 5 %, as one tests who forgets the repetition
    sizes = plan_of(3, RECOMMENDED_MAX_EPISODES).sizes
    loose = SequentialPlan(
        first=10,
        growth=2.0,
        max_episodes=sizes[-1],
        alpha=0.05 * len(sizes),
        comparisons=1,
        spending="even",
    )
    assert loose.alphas == pytest.approx([0.05] * 6)
    rng = np.random.default_rng(0)
    result = simulate(Scenario(reference=0.5), loose, ThresholdConfig(), runs=RUNS, rng=rng)
    assert result.promoted > stats.binom.ppf(1 - ERROR, RUNS, 0.05)


@pytest.mark.parametrize("rate", [0.3, 0.45, 0.5, 0.8])
@pytest.mark.parametrize("concentration", [ALIKE, SHARED])
def test_true_gains_of_ten_points_are_promoted_within_the_budget(rate, concentration):
    scenario = Scenario(reference=rate, gain=0.1, concentration=concentration)
    at_least = stats.binom.ppf(ERROR, RUNS, 0.8)
    assert simulated(scenario, 3).promoted_at_once >= at_least
    assert simulated(scenario, 10).promoted >= at_least
    assert simulated(scenario, 10, 600).promoted_at_once >= at_least


def test_half_the_budget_would_fail_the_claim():
    result = simulated(Scenario(reference=0.5, gain=0.1), 3, RECOMMENDED_MAX_EPISODES // 2)
    assert result.promoted_at_once < stats.binom.ppf(ERROR, RUNS, 0.8)


def test_simulation_agrees_with_runs_over_single_episodes():
    scenario = Scenario(reference=0.4, gain=0.25)
    plan, thresholds, runs = plan_of(2, 80), ThresholdConfig(), 400
    rng = np.random.default_rng(7)
    promoted = sum(_promotes(scenario, plan, thresholds, rng) for _ in range(runs))
    expected = simulate(scenario, plan, thresholds, runs=20_000, rng=rng)
    low, high = stats.binom.interval(1 - 2 * ERROR, runs, expected.promoted_at_once / 20_000)
    assert low <= promoted <= high
    assert 0.2 * runs < promoted < 0.95 * runs


def _promotes(scenario, plan, thresholds, rng) -> bool:
    """Return whether one comparison over drawn episodes ends in a promotion."""
    sides: list[list[EpisodeOutcome]] = [[], []]
    for look, (size, alpha) in enumerate(zip(plan.sizes, plan.alphas, strict=True)):
        for side, rate in zip(sides, (0.65, scenario.reference), strict=True):
            side.extend(
                EpisodeOutcome(task="t", seed=seed, success=bool(rng.uniform() < rate))
                for seed in range(len(side), size)
            )
        found = paired_evidence(*sides, metric="success", alpha=alpha, look=look, seed=0)
        left = plan.looks_left(look)
        verdict = judge(found, (), thresholds, warm_up=False, looks_left=left)
        if verdict.decision is not None:
            return verdict.decision is Decision.PROMOTE
    raise AssertionError("undecided after the last look")


def test_mean_episodes_lie_between_the_first_look_and_the_budget():
    # a gain of 0.8 shows at the fourth look of 80; equal policies take nearly the whole budget
    large = simulated(Scenario(reference=0.1, gain=0.8), 3)
    equal = simulated(Scenario(reference=0.5), 3)
    assert 10 <= large.mean_episodes < 100
    assert 300 < equal.mean_episodes <= RECOMMENDED_MAX_EPISODES


def test_equal_generators_give_equal_results():
    scenario = Scenario(reference=0.5, gain=0.1)
    assert simulated(scenario, 3) == simulated(scenario, 3)


def test_command_writes_tables_that_depend_on_its_options(capsys, monkeypatch):
    monkeypatch.setattr(score_characteristics, "BUDGETS", (10,))

    def written(*options):
        assert main(["--runs", "20", "--score-runs", "1", "--max-episodes", "40", *options]) == 0
        return capsys.readouterr().out

    first = written("--seed", "3")
    lines = first.splitlines()
    assert lines[0].startswith("| true success | difficulty | false promotion, 3 cycles |")
    assert sum(line.startswith("| 0.") for line in lines) == 10 + 8 + len(FIRST_RATES)
    assert any(line.startswith("| 40 |") for line in lines)
    names = [*LEVEL, *BETTER]
    assert [line.split(" |")[0] for line in lines if line[2:].startswith(tuple(names))] == [
        f"| {name}" for name in names
    ]
    assert written("--seed", "3") == first
    assert written("--seed", "4") != first


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"reference": 0.0}, r"expected success rates in \(0, 1\), got 0\.0 and 0\.0"),
        ({"reference": 0.95, "gain": 0.1}, r"expected success rates in \(0, 1\), got 0\.95"),
        ({"reference": 0.5, "concentration": 0.0}, "concentration: expected > 0, got 0.0"),
    ],
)
def test_scenario_refuses_settings_out_of_range(settings, message):
    with pytest.raises(InputError, match=message):
        Scenario(**settings)


def test_no_runs_are_refused():
    with pytest.raises(InputError, match=r"simulate\.runs: expected >= 1, got 0"):
        simulate(
            Scenario(reference=0.5),
            plan_of(3, 10),
            ThresholdConfig(),
            runs=0,
            rng=np.random.default_rng(0),
        )


def _page_rows(header: str) -> list[list[str]]:
    """Return the cells below a table header of the page."""
    page = Path(__file__).parents[4] / "docs" / "loop.md"
    lines = page.read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(header)) + 2
    rows = takewhile(lambda line: line.startswith("|"), lines[start:])
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def _percentages(cell: str) -> tuple[float, float]:
    """Return the share and the bound of a cell like ``4.1 % (<= 4.4 %)``, in [0, 1]."""
    share, bound = re.findall(r"([0-9.]+) %", cell)
    return float(share) / 100, float(bound) / 100


def test_page_shows_that_equal_policies_keep_the_level():
    rows = _page_rows("| true success | difficulty | false promotion")
    assert len(rows) == 10
    for rate, difficulty, *cells in rows:
        concentration = ALIKE if difficulty == "independent" else SHARED
        scenario = Scenario(reference=float(rate), concentration=concentration)
        for cycles, cell in zip((3, 10), cells, strict=True):
            share, bound = _percentages(cell)
            assert bound <= 0.05
            low, high = stats.binom.interval(1 - 1e-4, RUNS, [max(share - 5e-4, 0), share + 5e-4])
            assert low[0] <= simulated(scenario, cycles).promoted <= high[1]


def test_page_shows_that_true_gains_are_promoted():
    rows = _page_rows("| true success | difficulty | promoted at once")
    assert len(rows) == 8
    for name, difficulty, at_once, in_run, _, _, long_run, _ in rows:
        concentration = ALIKE if difficulty == "independent" else SHARED
        scenario = Scenario(reference=float(name[:4]), gain=0.1, concentration=concentration)
        assert min(_percentages(cell)[0] for cell in (at_once, in_run, long_run)) >= 0.8
        share, _ = _percentages(at_once)
        low, high = stats.binom.interval(1 - 1e-4, RUNS, [share - 5e-4, min(share + 5e-4, 1)])
        assert low[0] <= simulated(scenario, 3).promoted_at_once <= high[1]


def test_page_names_the_recommended_budget():
    budgets = {int(row[0]): row[1:] for row in _page_rows("| budget |")}
    late = {budget: float(cells[0].rstrip(" %")) for budget, cells in budgets.items()}
    enough = [budget for budget, power in late.items() if power >= 80.0]
    assert min(enough) == RECOMMENDED_MAX_EPISODES


def test_page_shows_when_first_candidates_are_blessed():
    rows = _page_rows("| first candidate |")
    assert [float(row[0]) for row in rows] == list(FIRST_RATES)
    for rate, *cells in rows:
        for cycles, blessed, episodes in zip((3, 10), cells[::2], cells[1::2], strict=True):
            plan = plan_of(cycles, RECOMMENDED_MAX_EPISODES)
            found = first_blessing(float(rate), plan, ThresholdConfig())
            assert blessed == f"{100 * found.blessed:.1f} %"
            assert episodes == f"{found.mean_episodes:.0f}"
            if float(rate) <= ThresholdConfig().min_promote:
                assert found.blessed * cycles <= 0.05


def test_page_shows_which_scores_keep_the_level():
    rows = {row[0]: row[1:] for row in _page_rows("| scores of equal mean |")}
    assert list(rows) == list(LEVEL)
    beyond = "always 1.65 against lognormal, sigma 1"
    for name, cells in rows.items():
        assert (max(_percentages(cell)[0] for cell in cells) <= 0.05) == (name != beyond)
    share, _ = _percentages(rows["always 1 against exponential"][0])
    rng = np.random.default_rng(4)
    found = simulate_scores(
        LEVEL["always 1 against exponential"], plan_of(3, 10), runs=200, rng=rng
    )
    low, high = stats.binom.interval(1 - 1e-4, 200, [share - 0.01, share + 0.01])
    assert low[0] <= found.promoted <= high[1]
