"""Finds, or lets a back end collect, the data of a cycle."""

from pathlib import Path
from typing import ClassVar

from cadenza.core.errors import ConfigurationError
from cadenza.loop.agents.base import OWN_SEED, Agent, JobPlace, Runner, subprocess_runner
from cadenza.loop.backends.base import Backend, lerobot_backend
from cadenza.loop.constitution import Constitution, load_constitution
from cadenza.loop.contracts.records import DataRequest, DatasetRef, JobRunner, Proposal, SeedRange
from cadenza.loop.errors import DataError
from cadenza.loop.events.bus import EventBus
from cadenza.loop.schedule import seed_range


class DataAgent(Agent[str | None]):
    """Resolves proposals to data.

    Without a back end and a task filter it takes a proposal at its word, as LeAgents does.
    """

    EVENT_STAGE: ClassVar = "collect"
    FAILED: ClassVar = DataError

    def __init__(
        self,
        bus: EventBus,
        runner: Runner = subprocess_runner,
        task_filter: str | None = None,
        *,
        backend: Backend | None = None,
        constitution: Constitution | None = None,
        read_roots: tuple[Path, ...] = (),
    ) -> None:
        """Work for one run, on the episodes of the suite ``task_filter`` or, if None, on all.

        ``backend`` None means LeRobot where there is a filter, ``constitution`` None the shipped
        rules; ``runner`` and ``read_roots`` as in `Agent`.
        """
        rules = constitution or load_constitution(None)
        super().__init__(task_filter, rules, bus, runner, backend=backend, read_roots=read_roots)
        self._at_its_word = backend is None and task_filter is None

    def run(
        self,
        *,
        run_id: str,
        cycle: int,
        proposal: Proposal,
        workdir: Path | None = None,
        seeds: SeedRange | None = None,
        jobs: JobRunner | None = None,
    ) -> DatasetRef:
        """Return the data of a cycle that ``proposal`` asks for; arguments as in `Agent`.

        Raises:
            DataError: The command failed.
            ConstitutionError: It is refused.
            ConfigurationError: There is no ``workdir``, but a back end.
        """
        place = JobPlace(run_id=run_id, cycle=cycle, stage="data", workdir=workdir or Path())
        if self._at_its_word:
            count, notes = proposal.num_episodes, proposal.notes
            dataset = DatasetRef(repo_id=proposal.dataset, num_episodes=count, notes=notes)
        elif workdir is None:
            raise ConfigurationError(
                "DataAgent.run: expected the run's folder as workdir, got None; the back end "
                f"{self.backend.name!r} writes below it."
            )
        else:
            count = proposal.num_episodes or 1
            request = DataRequest(
                cycle=cycle,
                proposal=proposal,
                seeds=seeds or seed_range(OWN_SEED, "data", cycle, count=count),
                folder=place.folder,
            )
            plan, read = self.backend.plan_data, self.backend.read_data
            dataset = self._made(place, request, plan, read, jobs)
        episodes = dataset.episodes
        told = {
            "action": proposal.action,
            "repo_id": dataset.repo_id,
            "num_episodes": len(episodes) if episodes else dataset.num_episodes,
            "notes": dataset.notes,
            "task_filter": self.cfg,
            "episode_range": [min(episodes), max(episodes)] if episodes else None,
            "sha256": dataset.sha256,
        }
        self._emit(place, "dataset_resolved", told)
        return dataset

    def _lerobot(self) -> Backend:
        return lerobot_backend(task_filter=self.cfg)
