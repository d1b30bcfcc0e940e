"""Doctor: is this machine ready for loop runs, and if not, what to do.

Start at:    `examine`.
Layout:      `check` (one finding), `machine`, `store` and `lerobot` (what is looked at).
Import time: the parts load torch and SQLAlchemy when they are asked, not before.
"""

from cadenza.loop.doctor.check import Check, Level
from cadenza.loop.doctor.machine import examine

__all__ = ["Check", "Level", "examine"]
