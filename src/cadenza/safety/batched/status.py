"""What became of each environment in a batched solve, as small integers.

Integers, because a tensor cannot hold `cadenza.safety.solvers.SolveStatus`.
"""

from typing import Final

#: The action is the nominal one, bit for bit; it meets every row.
INACTIVE: Final = 0
#: The action was changed and meets every row.
OPTIMAL: Final = 1
#: No action of the box meets every row; the action is the least violation.
INFEASIBLE: Final = 2
#: The solver did not finish; the action is the least violation, whose most urgent row is exact.
NOT_CONVERGED: Final = 3
#: The input is not finite or out of range; the action is zero, moved into the box.
BAD_INPUT: Final = 4

#: Word of each code in telemetry; the first three are those of `FilterInfo.status`.
STATUS_NAMES: Final = ("inactive", "optimal", "infeasible", "max_iter", "bad_input")
