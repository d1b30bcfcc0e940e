"""Operational-space safety filter of one arm: joints, workspace, obstacles and task in one QP.

Start at:    `VelocityOSCBF` and `TorqueOSCBF` (hard limits, task-consistent cost), `ArmConstraints`
             (what must hold), `docs/oscbf.md` (the maths). `OSCBF` takes ready rows, all soft.
Promise:     the command stays in the joints' limits; it is unchanged, bit for bit, while nothing is
             active; when the hard rows contradict each other it is the least violation of them at
             the lowest speed, flagged, and never the unfiltered command.
May import:  `core` and `safety`.  Must not import: any other folder of the package.
Adding one:  a rule and its gradient in `rules`; both controllers then have it.
"""

from typing import TYPE_CHECKING

from cadenza.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from cadenza.safety.reporting.report import SlackAggregate as SlackAggregate
    from cadenza.safety.reporting.report import aggregate_oscbf_slack as aggregate_oscbf_slack

    from .controllers import DEFAULT_CBF_ALPHA as DEFAULT_CBF_ALPHA
    from .controllers import DEFAULT_SLACK_PENALTY as DEFAULT_SLACK_PENALTY
    from .controllers import DEFAULT_W_JOINT as DEFAULT_W_JOINT
    from .controllers import DEFAULT_W_OPERATIONAL as DEFAULT_W_OPERATIONAL
    from .controllers import OSCBF as OSCBF
    from .controllers import OSCBFConstraints as OSCBFConstraints
    from .controllers import TorqueOSCBF as TorqueOSCBF
    from .controllers import VelocityOSCBF as VelocityOSCBF
    from .controllers import collision_constraint_row as collision_constraint_row
    from .controllers import joint_limit_constraint_row as joint_limit_constraint_row
    from .program import OSCBFResult as OSCBFResult
    from .program import TaskCost as TaskCost
    from .rules import ArmConstraints as ArmConstraints
    from .rules import HalfSpaceRule as HalfSpaceRule
    from .rules import Obstacle as Obstacle
    from .rules import ObstacleRule as ObstacleRule
    from .rules import Priority as Priority
    from .rules import SelfCollisionRule as SelfCollisionRule
    from .rules import SingularityRule as SingularityRule
    from .rules import SpeedRule as SpeedRule
else:
    __dir__, __getattr__ = lazy_names(__name__)
