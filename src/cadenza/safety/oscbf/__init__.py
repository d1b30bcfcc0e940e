"""Operational-space safety filter of one arm: joints, workspace, obstacles and task in one QP.

Start at:    `VelocityOSCBF` and `TorqueOSCBF` (hard limits, task-consistent cost), `ArmConstraints`
             (what must hold), `docs/oscbf.md` (the maths). `OSCBF` takes ready rows, all soft.
Promise:     the command stays in the joints' limits; it is unchanged, bit for bit, while nothing is
             active; when the hard rows contradict each other it is the least violation of them at
             the lowest speed, flagged, and never the unfiltered command.
May import:  `core` and `safety`.  Must not import: any other folder of the package.
Adding one:  a rule in `rules`, its gradient in `rows`; both controllers then have it.
"""

from typing import Final

from cadenza.core.lazy_names import lazy_names

#: Short names and the modules that define them, a leading dot for a sibling of this package;
#: imported at first use.
_EXPORTS: Final = {
    "DEFAULT_CBF_ALPHA": "soft",
    "DEFAULT_SLACK_PENALTY": "soft",
    "DEFAULT_W_JOINT": "soft",
    "DEFAULT_W_OPERATIONAL": "soft",
    "OSCBF": "soft",
    "ArmConstraints": "rules",
    "HalfSpaceRule": "rules",
    "OSCBFConstraints": "soft",
    "OSCBFResult": "programme",
    "Obstacle": "rules",
    "ObstacleRule": "rules",
    "Priority": "rules",
    "SelfCollisionRule": "rules",
    "SingularityRule": "rules",
    "SlackAggregate": ".reporting.rows",
    "SpeedRule": "rules",
    "TaskCost": "programme",
    "TorqueOSCBF": "controllers",
    "VelocityOSCBF": "controllers",
    "aggregate_oscbf_slack": ".reporting.rows",
    "collision_constraint_row": "soft",
    "joint_limit_constraint_row": "soft",
}

__dir__, __getattr__ = lazy_names(__name__, _EXPORTS)
