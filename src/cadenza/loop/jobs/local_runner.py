"""Jobs as processes of this machine."""

from collections.abc import Callable

from cadenza.loop.config import JobsConfig
from cadenza.loop.jobs.budget import BudgetMeter
from cadenza.loop.jobs.durable_runner import STUCK_S, DurableRunner
from cadenza.loop.jobs.hosts import LocalHosts
from cadenza.loop.jobs.programs import ProgramTable
from cadenza.loop.jobs.reports import Incident, JobProgress
from cadenza.loop.jobs.stopping import StopCheck, never
from cadenza.loop.store.jobstore import JobStore
from cadenza.loop.store.rows import Lease


class LocalJobRunner(DurableRunner):
    """Runs each attempt in a host process of this machine; see `DurableRunner`."""

    def __init__(
        self,
        store: JobStore,
        lease: Lease,
        config: JobsConfig,
        programs: ProgramTable,
        *,
        budget: BudgetMeter | None = None,
        stop: StopCheck = never,
        on_progress: Callable[[JobProgress], None] | None = None,
        on_incident: Callable[[Incident], None] | None = None,
        stuck_s: float = STUCK_S,
    ) -> None:
        """Run jobs under ``lease``; arguments as `DurableRunner`."""
        super().__init__(
            store,
            lease,
            config,
            programs,
            LocalHosts(),
            budget=budget,
            stop=stop,
            on_progress=on_progress,
            on_incident=on_incident,
            stuck_s=stuck_s,
        )
