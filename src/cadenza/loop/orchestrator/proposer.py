"""Proposers: what the next cycle trains on. Ask one by ``propose(cycle, last_report)``."""

from cadenza.loop.orchestrator.proposer_curated import CuratedProposer
from cadenza.loop.orchestrator.proposer_llm import LLMProposer
from cadenza.loop.schedule import DeterministicProposer, Proposer

__all__ = ["CuratedProposer", "DeterministicProposer", "LLMProposer", "Proposer"]
