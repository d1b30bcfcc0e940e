"""Filters that keep a backup command possible: candidate if it stays so, else the backup.

Start at:    `BackupFilter` (one call per control step); `Base` is what a robot has to answer.
Promise:     obstacles are never touched; a lone partner no faster than the robot can flee is never
             touched in free space, other partners only at rest. `docs/safety.md`, theorems A to C'.
May import:  `core` and, of `safety`, control models, geometry, bounds, snapshots, solvers, rows.
             Must not import: `runtime`, `filters`, `batched`.
Adding one:  a robot is one file that implements `Base`, and a line in `filter`.
"""

from cadenza.safety.backup.batched import BatchedBackupFilter, BatchedBackupStep
from cadenza.safety.backup.filter import (
    BackupFilter,
    BackupKeywords,
    BackupStep,
    Guarantee,
    RobotModel,
)

__all__ = [
    "BackupFilter",
    "BackupKeywords",
    "BackupStep",
    "BatchedBackupFilter",
    "BatchedBackupStep",
    "Guarantee",
    "RobotModel",
]
