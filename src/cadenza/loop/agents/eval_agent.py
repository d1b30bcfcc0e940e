"""Plays a policy on given initial states."""

from pathlib import Path
from typing import ClassVar

from cadenza.loop.agents.base import OWN_SEED, Agent, JobPlace, cycle_of
from cadenza.loop.backends.base import Backend, lerobot_backend
from cadenza.loop.config import EvalConfig
from cadenza.loop.contracts.records import (
    CheckpointRecord,
    EvalReport,
    EvalRequest,
    JobRunner,
    SeedRange,
)
from cadenza.loop.errors import EvalError, EvalOutputError
from cadenza.loop.schedule import seed_range

__all__ = ["EvalAgent", "EvalError"]


class EvalAgent(Agent[EvalConfig]):
    """Evaluates policies by a back end's commands."""

    EVENT_STAGE: ClassVar = "eval"
    FAILED: ClassVar = EvalError
    UNUSABLE: ClassVar = EvalOutputError

    def build_command(self, checkpoint: CheckpointRecord, output_dir: Path) -> list[str]:
        """Return the command that evaluates into ``output_dir``, on the seeds of `run` alone.

        An unknown or repeated flag is a `ConfigurationError`.
        """
        request = self._request(cycle_of(output_dir), output_dir, checkpoint, None)
        return list(self.backend.plan_eval(request).command)

    def run(
        self,
        *,
        run_id: str,
        cycle: int,
        checkpoint: CheckpointRecord,
        workdir: Path,
        stage: str = "eval",
        seeds: SeedRange | None = None,
        jobs: JobRunner | None = None,
    ) -> EvalReport:
        """Return what a policy achieves, with every episode, one per seed; arguments as in `Agent`.

        Raises:
            EvalError: The evaluation failed, left no usable report, or measured other initial
                states than asked.
            ConstitutionError: The command is refused.
        """
        place = JobPlace(run_id=run_id, cycle=cycle, stage=stage, workdir=workdir)
        request = self._request(cycle, place.folder, checkpoint, seeds)
        plan, read = self.backend.plan_eval, self.backend.read_eval
        report = self._made(place, request, plan, read, jobs, [checkpoint.path])
        _require_seeds(report, request.seeds, place)
        told = report.model_dump(include={"success_rate", "task_suite", "n_episodes"})
        self._emit(place, "report", {**told, "stage": stage})
        return report

    def _lerobot(self) -> Backend:
        return lerobot_backend(eval=self.cfg)

    def _request(
        self, cycle: int, folder: Path, checkpoint: CheckpointRecord, seeds: SeedRange | None
    ) -> EvalRequest:
        seeds = seeds or seed_range(OWN_SEED, "compare", cycle, count=self.cfg.n_episodes)
        return EvalRequest(
            cycle=cycle,
            checkpoint=checkpoint,
            seeds=seeds,
            batch_size=min(self.cfg.batch_size, seeds.count),
            extra_args=self.cfg.extra_args,
            folder=folder,
        )


def _require_seeds(report: EvalReport, seeds: SeedRange, place: JobPlace) -> None:
    """Raise unless every episode started from one of ``seeds``: others may be training data."""
    end = seeds.start + seeds.count
    strangers = [one.seed for one in report.outcomes if not seeds.start <= one.seed < end]
    if strangers:
        raise EvalError(
            f"{place.stage} of cycle {place.cycle}: expected episodes from the seeds "
            f"{seeds.start} to {end - 1}, got seed {strangers[0]} and {len(strangers) - 1} more; "
            f"see {place.log_path}."
        )
