"""Errors of the safety stack.

`ConcertoSafetyInfeasible` keeps the name that callers of the original filter catch.
"""

from cadenza.core.errors import CadenzaError, IntegrityError


class ConcertoSafetyInfeasible(CadenzaError, RuntimeError):  # noqa: N818 - a promised public name
    """No action inside the actuator box meets every safety row.

    Whoever catches this must go to the braking fallback (`cadenza.safety.braking`) for this
    step and must not pass the unfiltered action. Solving again with another conformal slack is
    no recovery: the conformal layer bounds an average over many steps, not this one.
    """


class ReportError(IntegrityError, ValueError):
    """A stored safety report is no report, was changed, or has a version we do not know."""
