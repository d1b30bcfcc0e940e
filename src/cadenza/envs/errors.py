"""Errors of the environments."""

from cadenza.core.errors import CadenzaError


class ChamberEnvCompatibilityError(CadenzaError, RuntimeError):
    """A wrapper's assumption about its inner env fails, or a simulator is absent or broken.

    Raised instead of falling back in silence: a run with a wrapper that does nothing would look
    like evidence.
    """


class ObservationLayoutError(ChamberEnvCompatibilityError, TypeError):
    """An observation, or its space, lacks an entry that a wrapper reads, or has another kind."""
