"""Improvement worker: harvests a policy's own successes and joins the harvests."""

from pathlib import Path
from typing import Any, ClassVar

from cadenza.core.errors import IntegrityError
from cadenza.loop.agents.base import (
    OWN_SEEDS,
    CommandWorker,
    JobPlace,
    Runner,
    cycle_of,
    subprocess_runner,
)
from cadenza.loop.backends.base import Backend, lerobot_backend
from cadenza.loop.config import EvalConfig, ImproveConfig
from cadenza.loop.constitution import Constitution
from cadenza.loop.contracts.records import (
    CheckpointRecord,
    DatasetRef,
    Harvest,
    HarvestRequest,
    JobRunner,
    MergeRequest,
    SeedRange,
)
from cadenza.loop.errors import ImproveError, JobFailedError
from cadenza.loop.events.bus import EventSink
from cadenza.loop.schedule import attempts_for

__all__ = ["ImproveAgent", "ImproveError"]


class ImproveAgent(CommandWorker[ImproveConfig]):
    """Collects successful episodes by a back end's commands."""

    EVENT_STAGE: ClassVar[str] = "improve"

    def __init__(
        self,
        cfg: ImproveConfig,
        eval_cfg: EvalConfig,
        constitution: Constitution,
        bus: EventSink,
        runner: Runner = subprocess_runner,
        *,
        backend: Backend | None = None,
        read_roots: tuple[Path, ...] = (),
    ) -> None:
        """Collect as ``cfg`` says where ``eval_cfg`` does; the rest as `CommandWorker`."""
        self.eval_cfg = eval_cfg
        super().__init__(cfg, constitution, bus, runner, backend=backend, read_roots=read_roots)

    def build_command(self, checkpoint: CheckpointRecord, out_dir: Path, repo_id: str) -> list[str]:
        """Return the command that collects ``repo_id``, on the seeds of `run` alone.

        ``out_dir`` is the folder of the step. A flag that is given twice is a `ConfigurationError`.
        """
        request = self._request(cycle_of(out_dir), out_dir, checkpoint, repo_id)
        return list(self.backend.plan_harvest(request).command)

    def run(
        self,
        *,
        run_id: str,
        cycle: int,
        checkpoint: CheckpointRecord,
        workdir: Path,
        prev_mix: DatasetRef | None = None,
        seeds: SeedRange | None = None,
        jobs: JobRunner | None = None,
    ) -> tuple[DatasetRef | None, dict[str, Any]]:
        """Harvest, and join with ``prev_mix``; errors as `harvest` and `merge`.

        Returned are the joined episodes, ``prev_mix`` itself if none was kept, and what the harvest
        brought.
        """
        harvest = self.harvest(
            run_id=run_id, cycle=cycle, checkpoint=checkpoint, workdir=workdir, seeds=seeds,
            jobs=jobs,
        )  # fmt: skip
        dataset = harvest.dataset or prev_mix
        if harvest.dataset is not None and prev_mix is not None:
            dataset = self.merge(
                run_id=run_id, cycle=cycle, sources=(prev_mix, harvest.dataset), workdir=workdir,
                jobs=jobs,
            )  # fmt: skip
        return dataset, _summary(harvest)

    def harvest(
        self,
        *,
        run_id: str,
        cycle: int,
        checkpoint: CheckpointRecord,
        workdir: Path,
        seeds: SeedRange | None = None,
        focus: tuple[str, ...] = (),
        jobs: JobRunner | None = None,
    ) -> Harvest:
        """Return successful episodes of a policy, more of the tasks in ``focus``.

        ``seeds`` are initial states it may use; None for fixed ones. ``jobs`` runs the command;
        None for one call of the worker's own runner.

        Raises:
            ImproveError: The harvest failed.
            ConstitutionError: The command is refused.
        """
        place = JobPlace(run_id=run_id, cycle=cycle, stage="harvest", workdir=workdir)
        repo_id = f"local/{run_id}-cycle{cycle}-rollouts"
        request = self._request(cycle, place.folder, checkpoint, repo_id)
        request = request.model_copy(update={"seeds": seeds or request.seeds, "focus": focus})
        try:
            plan = self.backend.plan_harvest(request)
            self._run(place, plan, jobs, [checkpoint.path])
            harvest = self.backend.read_harvest(request)
        except (JobFailedError, IntegrityError) as error:
            raise ImproveError(str(error)) from error
        told = _summary(harvest)
        if request.starts == "failed":
            told["starts"] = request.starts
        self._emit(place, "rollouts_collected", told)
        return harvest

    def merge(
        self,
        *,
        run_id: str,
        cycle: int,
        sources: tuple[DatasetRef, ...],
        workdir: Path,
        jobs: JobRunner | None = None,
    ) -> DatasetRef:
        """Return ``sources``, at least two, joined into one dataset.

        Raises:
            ImproveError: Joining failed.
            ConstitutionError: The command is refused.
        """
        place = JobPlace(run_id=run_id, cycle=cycle, stage="merge", workdir=workdir)
        request = MergeRequest(
            sources=sources,
            repo_id=f"local/{run_id}-rollouts-mix-c{cycle}",
            folder=place.folder,
        )
        try:
            plan = self.backend.plan_merge(request)
            self._run(place, plan, jobs, [source.root for source in sources])
            merged = self.backend.read_merge(request)
        except (JobFailedError, IntegrityError) as error:
            raise ImproveError(str(error)) from error
        payload = {"repo_id": merged.repo_id, "episodes": merged.num_episodes}
        self._emit(place, "rollouts_merged", payload)
        return merged

    def _lerobot(self) -> Backend:
        return lerobot_backend(eval=self.eval_cfg, improve=self.cfg)

    def _request(
        self, cycle: int, folder: Path, checkpoint: CheckpointRecord, repo_id: str
    ) -> HarvestRequest:
        return HarvestRequest(
            cycle=cycle,
            checkpoint=checkpoint,
            episodes=self.cfg.episodes,
            starts=self.cfg.starts,
            seeds=OWN_SEEDS.range("harvest", cycle, count=attempts_for(self.cfg.episodes)),
            repo_id=repo_id,
            device=self.cfg.device,
            task_text=self.cfg.task_text,
            extra_args=self.cfg.extra_args,
            folder=folder,
        )


def _summary(harvest: Harvest) -> dict[str, Any]:
    dataset = harvest.dataset
    return {
        "kept": harvest.kept,
        "successes": harvest.successes,
        "attempts": harvest.attempts,
        "success_rate": harvest.success_rate,
        "repo_id": None if dataset is None else dataset.repo_id,
        "root": None if dataset is None else dataset.root,
    }
