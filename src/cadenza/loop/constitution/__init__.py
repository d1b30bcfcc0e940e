"""Constitution: no job of the loop runs that these rules do not allow.

Start at:    `load_constitution`, then `Constitution.clear`: the job that a back end wants in, the
             job as it may run out.
Promise:     deny by default: an unknown program, flag, spelling or environment, a path outside the
             run's folders, a number beyond its limit and a limit that the file lacks are refused,
             each by a named rule.
May import:  `core`, the loop's records.  Must not import: runners, back ends, the controller.
Layout:      `flags` (words), `kinds` (values and paths), `weights` (what a policy may bring along),
             `typed_jobs` (one class for each program), `suites` (tasks of LeRobot's),
             `constitution` (the file of rules, its judgements).
"""

from cadenza.loop.constitution.constitution import Constitution, load_constitution
from cadenza.loop.constitution.flags import ConstitutionError, Verdict
from cadenza.loop.constitution.kinds import Roots
from cadenza.loop.constitution.typed_jobs import JobPlan, TypedJob

__all__ = [
    "Constitution",
    "ConstitutionError",
    "JobPlan",
    "Roots",
    "TypedJob",
    "Verdict",
    "load_constitution",
]
