"""What a run came to, for people and for its last event."""

from dataclasses import asdict, dataclass, field
from typing import Any

from cadenza.loop.config import LoopConfig
from cadenza.loop.state import LoopState

#: Reason of a run that was asked to stop; it can be resumed.
STOP_REQUESTED = "stop requested"


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What a run came to.

    Attributes:
        run_id: The run.
        cycles_run: Cycles with a decision.
        decisions: Their decisions, in order.
        final_policy: Policy type of the blessed policy; None if none is.
        baseline_success_rate: What the reference achieved when it was last measured.
        stop_reason: Why the run ended.
        final_rung: Rung of the policy ladder that the run ended on.
        blessed_checkpoint: Path of the blessed policy; None if none is.
        blessed_cycle: Cycle that trained it; None too for one that the run started from.
    """

    run_id: str
    cycles_run: int = 0
    decisions: list[str] = field(default_factory=list[str])
    final_policy: str | None = None
    baseline_success_rate: float | None = None
    stop_reason: str = "budget: max_cycles"
    final_rung: str | None = None
    blessed_checkpoint: str | None = None
    blessed_cycle: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return all of it, for JSON."""
        return asdict(self)


def summarize(
    state: LoopState, config: LoopConfig, *, stop_reason: str | None = None
) -> RunSummary:
    """Return what the run came to so far.

    Args:
        state: State of the run.
        config: Its configuration.
        stop_reason: Why it ends, where the state does not say.
    """
    blessed = state.blessed
    return RunSummary(
        run_id=state.run_id,
        cycles_run=len(state.decisions),
        decisions=list(state.decisions),
        final_policy=None if blessed is None else blessed.policy_type,
        baseline_success_rate=state.baseline,
        stop_reason=state.stop_reason or stop_reason or STOP_REQUESTED,
        final_rung=config.policy_ladder[state.rung].name,
        blessed_checkpoint=None if blessed is None else blessed.path,
        blessed_cycle=None if blessed is None or blessed.cycle < 0 else blessed.cycle,
    )
