"""A report whose every field has another value."""

from cadenza.safety.reporting import (
    AssumptionRow,
    ConditionDetails,
    ConditionRow,
    GapRow,
    ReportDetails,
    ThreeTableReport,
)

DETAILS = ReportDetails(
    conditions=(
        ConditionDetails(
            condition="filter_on",
            n_steps=400,
            violating_episodes=2,
            contact_episodes=1,
            infeasible_steps=3,
            uncertified_steps=5,
            intervened_steps=70,
            min_distance_m=0.398,
            intervention_mean=0.25,
            intervention_peak=1.5,
            slack_peak=0.75,
            latency_p50_ms=0.02,
            latency_p99_ms=0.09,
            brake_reasons={"ttc": 2, "contact": 1},
        ),
    ),
    seeds=(3, 4),
    config_hash="abc123",
    solver="daqp",
    solver_version="0.11.1",
    control_timestep_s=0.05,
    predictor_kind="constant_velocity",
    notes=("Three episodes were cut short.",),
)


def sample_report(*, details: ReportDetails | None = None, violations: int = 7) -> ThreeTableReport:
    """Return one row per table."""
    return ThreeTableReport(
        table_1=(AssumptionRow("A1", "gradient | bounded", 2, 400),),
        table_2=(ConditionRow("pred", "Learn", None, 40, violations, 3, 0.5, 0.125),),
        table_3=(GapRow("filter_on", -0.5, 0.25, -0.125),),
        details=details,
    )
