"""Core: what every other folder stands on, and nothing about robots or learning.

Start at:    `seeding.derive_substream` (all randomness), `runlog.bind_run_logger` (a run's record),
             `checkpoints.save_checkpoint` and `load_checkpoint`.
Promise:     equal seeds give equal bytes; what was written survives a kill or a power cut, or an
             error says so; nothing read from disk can run code.
May import:  no other folder of the package.
Import time: `checkpoints`, `payloads` and `device` load torch; the rest stays light.
"""

__version__ = "0.1.0"
