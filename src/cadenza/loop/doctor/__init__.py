"""Doctor: is this machine ready for loop runs, and if not, what to do.

Start at:    `read_configuration` and `examine`.
Layout:      `check` (one finding); `configuration`, `machine`, `lerobot` (what is seen).
Import time: the parts load torch and SQLAlchemy when they are asked, not before.
"""

from cadenza.loop.doctor.check import Check, Level
from cadenza.loop.doctor.configuration import read_configuration
from cadenza.loop.doctor.machine import examine

__all__ = ["Check", "Level", "examine", "read_configuration"]
