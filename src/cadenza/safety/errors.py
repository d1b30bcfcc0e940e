"""Errors of the safety stack.

`ConcertoSafetyInfeasible` keeps the name that callers of the original filter catch.
"""

from cadenza.core.errors import CadenzaError, InputError, IntegrityError


class ConcertoSafetyInfeasible(CadenzaError, RuntimeError):  # noqa: N818 - a promised public name
    """No action inside the actuator box meets every safety row.

    Code that catches this must use the braking fallback (`cadenza.safety.braking`) for this
    step and must not pass the unfiltered action. Solving again with another conformal slack is
    no recovery: the conformal layer bounds an average over many steps, not this one.
    """


class InputTypeError(InputError, TypeError):
    """An argument has another type than the one asked for."""


class EmergencyOutputError(InputError):
    """An emergency controller returned no finite action of its agent's shape inside the box."""


class ReportError(IntegrityError, ValueError):
    """A stored safety report is no report, was changed, or has a version we do not know."""
