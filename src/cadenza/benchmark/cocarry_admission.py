"""Admission of co-carry: its table, and the force limit that the reference controller sets.

Force limit:  f_max = `FORCE_MARGIN` x the 99th percentile of the largest internal force of episodes
              in which the reference brings the bar to its goal and keeps it level.
"""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

import cadenza
from cadenza.benchmark.admission import AdmissionPlan, AdmissionRow, play_row
from cadenza.benchmark.tasks import COCARRY_MJ
from cadenza.core.extras import load_extra

#: f_max over the 99th percentile of the reference.
FORCE_MARGIN: Final = 1.25
#: Whose episodes set the force limit, and their seeds, apart from those of the table.
FREEZING_PARTNERS: Final = ("cocarry_leader", "cocarry_mixed")
FREEZING_SEED: Final = 20_000
FREEZING_EPISODES: Final = 400
#: First seed of the rows that check the force limit on episodes it was not set on.
HELD_OUT_SEED: Final = 10_000

_REFERENCE: Final = "cocarry_reference"
_LEADER: Final = "cocarry_leader"


def _limits() -> Mapping[str, float]:
    from cadenza.envs.mujoco.cocarry_rules import TILT_LIMIT_DEG, force_limit

    return {"max_tilt_deg": TILT_LIMIT_DEG, "max_force": force_limit()}


def _rows() -> tuple[AdmissionRow, ...]:
    def row(name: str, ego: str, partner: str, episodes: int = 100, **rest: Any) -> AdmissionRow:
        return AdmissionRow(
            name=name,
            ego=f"cocarry_{ego}",
            partner=f"cocarry_{partner}",
            episodes=episodes,
            first_seed=rest.pop("first_seed", 0),
            options=rest,
        )

    kinds = ("nominal", "leader", "shared", "follower", "mixed")
    easy = ("low_arc", "lagged_leader", "pausing_leader", "follower_turns_leader")
    hard = ("slow_follower", "lagged_follower", "leader_turns_follower")
    sweeps: dict[str, dict[str, Any]] = {
        "physics step 5 ms": {"physics_step_s": 0.005},
        "bar of 2 kg": {"bar_mass": 2.0},
        "soft ties": {"time_constant_s": 0.01},
        "stiff arms": {"stiffness_scale": 1.0},
        "bar of 0.5 m": {"bar_length": 0.5},
    }
    return (
        *(row(f"reference, {kind}", "reference", kind) for kind in kinds),
        *(
            row(f"new seeds, {kind}", "reference", kind, 200, first_seed=HELD_OUT_SEED)
            for kind in ("leader", "mixed")
        ),
        *(
            row(condition.replace("_", " "), "reference", "leader", condition=condition)
            for condition in ("single_arm", "static_partner", "zero_partner")
        ),
        row("holding ego", "hold", "leader"),
        row("blind nominal, nominal", "blind_nominal", "nominal"),
        *(
            row(f"blind {schedule}, {kind}", f"blind_{schedule}", kind)
            for kind in ("leader", "mixed")
            for schedule in ("nominal", "mean")
        ),
        row("own senses only, leader", "reference", "leader", ego_sees="own"),
        *(
            row(f"partner seen {ticks} ticks late", "reference", "leader", partner_delay=ticks)
            for ticks in (2, 5, 10)
        ),
        *(row(f"stay level, {kind}", "level", kind, 50) for kind in (*kinds[1:4], *easy)),
        *(row(f"held out, {kind}", "reference", kind) for kind in (*easy, *hard)),
        *(
            row(f"{name}, {ego}", ego, "leader", 30, **options)
            for name, options in sweeps.items()
            for ego in ("reference", "blind_mean")
        ),
    )


#: The plan that `cadenza.benchmark.admission.admit` plays.
PLAN: Final = AdmissionPlan(
    rows=_rows(),
    matched=(
        *(f"reference, {kind}" for kind in ("nominal", "leader", "shared", "follower", "mixed")),
        "new seeds, leader",
        "new seeds, mixed",
    ),
    alone=("single arm", "static partner", "zero partner", "holding ego"),
    schedules={
        "reference, leader": ("blind nominal, leader", "blind mean, leader"),
        "reference, mixed": ("blind nominal, mixed", "blind mean, mixed"),
    },
    binding="blind nominal, leader",
    limits=_limits,
)


def freeze_force_limit(*, episodes: int = FREEZING_EPISODES) -> dict[str, Any]:
    """Return the manifest of the task: the force limit and how it was made.

    Args:
        episodes: Per partner class.
    """
    from cadenza.envs.mujoco.cocarry_rules import TILT_LIMIT_DEG

    forces: list[float] = []
    for partner in FREEZING_PARTNERS:
        row = AdmissionRow(
            name=f"freeze, {partner}",
            ego=_REFERENCE,
            partner=partner,
            episodes=episodes,
            first_seed=FREEZING_SEED,
        )
        forces += [
            outcome.info["max_force"]
            for outcome in play_row(COCARRY_MJ, row)
            if outcome.info["reached"] and outcome.info["max_tilt_deg"] < TILT_LIMIT_DEG
        ]
    median, ninety, high, largest = np.quantile(forces, [0.5, 0.9, 0.99, 1.0]).tolist()
    return {
        "task": COCARRY_MJ.task_id,
        "f_max_N": round(FORCE_MARGIN * high, 1),
        "rule": f"{FORCE_MARGIN} x 99th percentile of the largest internal force of an episode",
        "force_p50_p90_p99_max_N": [round(value, 2) for value in (median, ninety, high, largest)],
        "ego": _REFERENCE,
        "partners": list(FREEZING_PARTNERS),
        "first_seed": FREEZING_SEED,
        "episodes": len(forces),
        "mujoco": load_extra("mujoco").__version__,
        "package": cadenza.__version__,
        "command": f"cadenza tasks freeze {COCARRY_MJ.task_id}",
    }
