"""Records that the parts of the loop hand to one another."""

from cadenza.loop.contracts.records import (
    CheckpointRecord,
    DatasetRef,
    EpisodeOutcome,
    EvalReport,
    Proposal,
)

__all__ = ["CheckpointRecord", "DatasetRef", "EpisodeOutcome", "EvalReport", "Proposal"]
