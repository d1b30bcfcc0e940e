"""The controller, where LeAgents has it; see `cadenza.loop.orchestrator.controller`."""

from cadenza.loop.orchestrator.controller import LoopController
from cadenza.loop.orchestrator.summary import RunSummary

__all__ = ["LoopController", "RunSummary"]
