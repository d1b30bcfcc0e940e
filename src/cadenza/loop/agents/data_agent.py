"""Data worker: finds, or lets a back end collect, the data of a cycle."""

from pathlib import Path
from typing import ClassVar, Final

from cadenza.core.errors import ConfigurationError
from cadenza.loop.agents.base import (
    OWN_SEEDS,
    JobPlace,
    Runner,
    Worker,
    runner_for,
    subprocess_runner,
)
from cadenza.loop.backends.base import Backend, lerobot_backend
from cadenza.loop.constitution import Constitution, load_constitution
from cadenza.loop.contracts.records import DataRequest, DatasetRef, JobRunner, Proposal, SeedRange
from cadenza.loop.errors import DataError, JobFailedError
from cadenza.loop.events.bus import EventSink

__all__ = ["DataAgent", "DataError"]

#: Job key of the step.
STAGE: Final = "data"


class DataAgent(Worker):
    """Resolves proposals to data.

    Without a back end and a task filter it takes a proposal at its word, as LeAgents does.
    """

    EVENT_STAGE: ClassVar[str] = "collect"

    def __init__(
        self,
        bus: EventSink,
        runner: Runner = subprocess_runner,
        task_filter: str | None = None,
        *,
        backend: Backend | None = None,
        constitution: Constitution | None = None,
        read_roots: tuple[Path, ...] = (),
    ) -> None:
        """Work for one run, on the episodes of the suite ``task_filter`` or, if None, on all.

        ``backend`` None means LeRobot where there is a filter, ``constitution`` None the shipped
        rules; ``runner`` and ``read_roots`` as in `CommandWorker`.
        """
        if backend is None and task_filter is not None:
            backend = lerobot_backend(task_filter=task_filter)
        runner = runner if backend is None else runner_for(backend, runner)
        super().__init__(constitution or load_constitution(None), bus, runner, read_roots)
        self.task_filter = task_filter
        self._backend = backend

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
        """Return the data of a cycle that ``proposal`` asks for.

        ``workdir``, the folder of the run, is needed where the back end collects or selects.
        ``seeds`` are initial states that new episodes may use; None for a fixed range. ``jobs``
        runs the command; None for one call of the worker's own runner.

        Raises:
            DataError: The command failed.
            ConstitutionError: It is refused.
            ConfigurationError: There is no ``workdir``, but a back end.
        """
        place = JobPlace(run_id=run_id, cycle=cycle, stage=STAGE, workdir=workdir or Path())
        if self._backend is None:
            count, notes = proposal.num_episodes, proposal.notes
            dataset = DatasetRef(repo_id=proposal.dataset, num_episodes=count, notes=notes)
        elif workdir is None:
            raise ConfigurationError(
                "DataAgent.run: expected the run's folder as workdir, got None; the back end "
                f"{self._backend.name!r} writes below it."
            )
        else:
            count = proposal.num_episodes or 1
            request = DataRequest(
                cycle=cycle,
                proposal=proposal,
                seeds=seeds or OWN_SEEDS.range("data", cycle, count=count),
                folder=place.folder,
            )
            dataset = self._ask(self._backend, place, request, jobs)
        self._emit(place, "dataset_resolved", self._resolved(proposal, dataset))
        return dataset

    def _ask(
        self, backend: Backend, place: JobPlace, request: DataRequest, jobs: JobRunner | None
    ) -> DatasetRef:
        plan = backend.plan_data(request)
        if plan is not None:
            try:
                self._run(place, plan, jobs)
            except JobFailedError as error:
                raise DataError(str(error)) from error
        return backend.read_data(request)

    def _resolved(self, proposal: Proposal, dataset: DatasetRef) -> dict[str, object]:
        episodes = dataset.episodes
        count = len(episodes) if episodes else dataset.num_episodes
        return {
            "action": proposal.action,
            "repo_id": dataset.repo_id,
            "num_episodes": count,
            "notes": dataset.notes,
            "task_filter": self.task_filter,
            "episode_range": [min(episodes), max(episodes)] if episodes else None,
            "sha256": dataset.sha256,
        }
