"""Admission of the handover: the rows of its table.

A4 reads the takt: with a presenter that is frozen aside, the reference seats the peg, but too late.
"""

from collections.abc import Mapping
from typing import Any, Final

from cadenza.benchmark.admission import AdmissionPlan, AdmissionRow
from cadenza.benchmark.tasks import HANDOVER_MJ

#: Takt that leaves time for a presenter frozen aside, s.
LONG_TAKT_S: Final = 25.0
#: Errors of a presenter that grasps badly, and a weld tolerance that is too coarse.
LARGE_ERRORS: Final[dict[str, Any]] = {"grasp_error_m": 0.01, "yaw_error_deg": 25.0}
COARSE_WELD: Final[dict[str, Any]] = {"weld_tolerance_m": 0.004}


def _limits() -> Mapping[str, float]:
    return {"time": float(HANDOVER_MJ.complete_options({})["takt_s"])}


def _row(
    name: str, ego: str = "reference", partner: str = "presenter", **rest: Any
) -> AdmissionRow:
    return AdmissionRow(
        name=name,
        ego=f"handover_{ego}",
        partner=f"handover_{partner}",
        episodes=50,
        options=rest,
    )


#: The plan that `cadenza.benchmark.admission.admit` plays.
PLAN: Final = AdmissionPlan(
    rows=(
        _row("reference, presenter"),
        _row("reference, large errors", **LARGE_ERRORS),
        *(
            _row(f"reference, {kind}", partner=kind)
            for kind in ("nominal", "biased", "late", "yielding", "reactive")
        ),
        _row("blind receiver", "blind"),
        _row("own senses only", ego_sees="own"),
        _row("presenter absent", condition="presenter_absent"),
        _row("presenter frozen", condition="presenter_frozen"),
        _row("presenter frozen, takt 25 s", condition="presenter_frozen", takt_s=LONG_TAKT_S),
        _row("nominal grasp", "nominal_grasp"),
        _row("nominal grasp, weld 4 mm", "nominal_grasp", **COARSE_WELD),
        _row("reference, weld 4 mm", **COARSE_WELD),
    ),
    matched=("reference, presenter", "reference, large errors", "reference, nominal"),
    alone=("presenter absent", "presenter frozen", "own senses only"),
    schedules={"reference, presenter": ("blind receiver",)},
    binding="presenter frozen, takt 25 s",
    limits=_limits,
)
