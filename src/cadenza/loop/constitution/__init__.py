"""Constitution: no command of the loop runs that these rules do not allow.

Start at:    `load_constitution`, then `Constitution.clear`: the final command in, a typed job out.
Promise:     deny by default: an unknown program, flag, spelling or environment, a path outside the
             run's folders, a number beyond its limit and a limit that the file lacks are refused,
             each by a named rule.
May import:  `core`, the loop's records.  Must not import: runners, back ends, the controller.
Layout:      `flags` (words), `kinds` (values and paths), `programs` (entries, typed jobs, our own
             jobs), `lerobot_programs`, `constitution` (the file of rules, and its judgements).
"""

from cadenza.loop.constitution.constitution import Constitution, load_constitution
from cadenza.loop.constitution.flags import ConstitutionError, Verdict
from cadenza.loop.constitution.kinds import Roots
from cadenza.loop.constitution.programs import TypedJob

__all__ = [
    "Constitution",
    "ConstitutionError",
    "Roots",
    "TypedJob",
    "Verdict",
    "load_constitution",
]
