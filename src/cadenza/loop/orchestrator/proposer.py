"""Proposers: what the next cycle trains on. Call one as ``proposer(cycle, last_report)``."""

from cadenza.loop.orchestrator.proposer_curated import CuratedProposer
from cadenza.loop.orchestrator.proposer_llm import LLMProposer
from cadenza.loop.orchestrator.proposer_schedule import DeterministicProposer, Proposer

__all__ = ["CuratedProposer", "DeterministicProposer", "LLMProposer", "Proposer"]
