"""Harvests a policy's own successes and joins the harvests."""

from pathlib import Path
from typing import Any, ClassVar

from cadenza.loop.agents.base import OWN_SEED, Agent, JobPlace, Runner, cycle_of, subprocess_runner
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
from cadenza.loop.errors import ImproveError
from cadenza.loop.events.bus import EventBus
from cadenza.loop.schedule import attempts_for, seed_range

__all__ = ["ImproveAgent", "ImproveError"]


class ImproveAgent(Agent[ImproveConfig]):
    """Collects successful episodes by a back end's commands."""

    EVENT_STAGE: ClassVar = "improve"
    FAILED: ClassVar = ImproveError
    UNUSABLE: ClassVar = ImproveError

    def __init__(
        self,
        cfg: ImproveConfig,
        eval_cfg: EvalConfig,
        constitution: Constitution,
        bus: EventBus,
        runner: Runner = subprocess_runner,
        *,
        backend: Backend | None = None,
        read_roots: tuple[Path, ...] = (),
    ) -> None:
        """Collect as ``cfg`` says where ``eval_cfg`` does; the rest as `Agent`."""
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
        call: dict[str, Any] = {"run_id": run_id, "cycle": cycle, "workdir": workdir, "jobs": jobs}
        harvest = self.harvest(checkpoint=checkpoint, seeds=seeds, **call)
        dataset = harvest.dataset or prev_mix
        if harvest.dataset is not None and prev_mix is not None:
            dataset = self.merge(sources=(prev_mix, harvest.dataset), **call)
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
        """Return successful episodes, more of the tasks in ``focus``; arguments as in `Agent`.

        Raises:
            ImproveError: The collection failed.
            ConstitutionError: The command is refused.
        """
        place = JobPlace(run_id=run_id, cycle=cycle, stage="harvest", workdir=workdir)
        repo_id = f"local/{run_id}-cycle{cycle}-rollouts"
        request = self._request(cycle, place.folder, checkpoint, repo_id)
        request = request.model_copy(update={"seeds": seeds or request.seeds, "focus": focus})
        plan, read = self.backend.plan_harvest, self.backend.read_harvest
        harvest = self._made(place, request, plan, read, jobs, [checkpoint.path])
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
        """Return ``sources``, at least two, joined into one dataset; errors as `harvest`."""
        place = JobPlace(run_id=run_id, cycle=cycle, stage="merge", workdir=workdir)
        repo_id = f"local/{run_id}-rollouts-mix-c{cycle}"
        request = MergeRequest(sources=sources, repo_id=repo_id, folder=place.folder)
        plan, read = self.backend.plan_merge, self.backend.read_merge
        merged = self._made(place, request, plan, read, jobs, [one.root for one in sources])
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
            seeds=seed_range(OWN_SEED, "harvest", cycle, count=attempts_for(self.cfg.episodes)),
            repo_id=repo_id,
            device=self.cfg.device,
            task_text=self.cfg.task_text,
            extra_args=self.cfg.extra_args,
            folder=folder,
        )


def _summary(harvest: Harvest) -> dict[str, Any]:
    dataset = harvest.dataset
    return {
        **harvest.model_dump(include={"kept", "successes", "attempts"}),
        "success_rate": harvest.success_rate,
        "repo_id": None if dataset is None else dataset.repo_id,
        "root": None if dataset is None else dataset.root,
    }
