"""Constitution: no command of the loop runs that these rules do not allow.

Start at:    `load_constitution`, then `Constitution.clear`: the final command in, a typed job out.
Promise:     deny by default: an unknown program, flag, spelling or environment, a path outside the
             run's folders, a number beyond its limit and a limit that the file lacks are refused,
             each by a named rule.
May import:  `core`, the loop's records.  Must not import: runners, back ends, the controller.
Layout:      `flags` (words), `kinds` (values and paths), `programs` (entries and typed jobs),
             `native_programs`, `lerobot_programs` (tables), `rules` (the file), `constitution`.
"""

from cadenza.loop.constitution.constitution import Constitution, load_constitution
from cadenza.loop.constitution.kinds import Roots
from cadenza.loop.constitution.programs import TypedJob
from cadenza.loop.constitution.verdict import ConstitutionError, Verdict

__all__ = [
    "Constitution",
    "ConstitutionError",
    "Roots",
    "TypedJob",
    "Verdict",
    "load_constitution",
]
