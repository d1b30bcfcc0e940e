"""The verification: every scenario of a configuration, one after the other."""

from collections.abc import Callable

from cadenza.core.provenance import compute_run_metadata
from cadenza.safety.verifier.config import VerifierConfig
from cadenza.safety.verifier.episodes import EpisodeRecord
from cadenza.safety.verifier.guards import GuardFactory, batched_guard, scenario_condition
from cadenza.safety.verifier.report import VerificationReport
from cadenza.safety.verifier.results import ScenarioResult
from cadenza.safety.verifier.scenarios import Scenario, plan_scenarios
from cadenza.safety.verifier.simulation import ROUNDING_M, play_scenario

#: Called with (steps played, steps in all, scenario).
Progress = Callable[[int, int, str], None]


def verify(
    config: VerifierConfig,
    progress: Progress | None = None,
    *,
    make_guard: GuardFactory = batched_guard,
) -> VerificationReport:
    """Play adversarial partners against a filter and return what happened.

    Args:
        config: Filter, opponents, size and seed; equal configurations give equal reports.
        progress: Called after every step of a batch.
        make_guard: Builds the filter under test; by default the batched one.

    Raises:
        ConfigurationError: The filter refuses its options, as when the ego has no authority left.
    """
    scenarios = playable_scenarios(config)
    steps_in_all = sum(scenario.steps for scenario in scenarios)
    done, contact_m = 0, config.contact_m
    results: list[ScenarioResult] = []
    worst: EpisodeRecord | None = None
    for scenario in scenarios:

        def advance(steps: int, name: str = scenario.name) -> None:
            nonlocal done
            done += steps
            if progress is not None:
                progress(done, steps_in_all, name)

        outcome = play_scenario(scenario, config, make_guard, advance)
        results.append(outcome.result)
        if worst is None or _rank(outcome.worst, contact_m) < _rank(worst, contact_m):
            worst = outcome.worst
    if worst is None:
        raise AssertionError("a configuration has at least one scenario")
    origin = compute_run_metadata(
        seed=config.seed,
        run_kind="safety_verification",
        repo_root=None,
        config_fingerprint=config.fingerprint(),
    )
    return VerificationReport(config=config, origin=origin, results=results, worst=worst)


def playable_scenarios(config: VerifierConfig) -> list[Scenario]:
    """Return the scenarios of ``config``; what cannot be played is refused before anything is.

    Raises:
        ConfigurationError: The ego has no authority left in one of them.
    """
    scenarios = plan_scenarios(config)
    for scenario in scenarios:
        scenario_condition(scenario, config)
    return scenarios


def _rank(episode: EpisodeRecord, contact_m: float) -> tuple[bool, bool, float]:
    """Order episodes, the most telling first.

    The claim is about one partner; and an ego that stops in front of a standing partner always
    ends at contact distance, which says nothing unless it goes on.
    """
    overlaps = episode.min_distance < contact_m - ROUNDING_M
    calm = episode.scenario.kind == "stationary" and not overlaps
    return episode.scenario.partners > 1, calm, episode.min_distance
