"""The constitution under the name that LeAgents gives it; see `cadenza.loop.constitution`."""

from cadenza.loop.constitution import Constitution, ConstitutionError, Verdict

__all__ = ["Constitution", "ConstitutionError", "Verdict"]
