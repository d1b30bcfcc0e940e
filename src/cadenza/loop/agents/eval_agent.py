"""Evaluation worker: plays a policy on given initial states."""

from pathlib import Path
from typing import ClassVar

from cadenza.core.errors import IntegrityError
from cadenza.loop.agents.base import OWN_SEEDS, CommandWorker, JobPlace, cycle_of
from cadenza.loop.backends.base import Backend, lerobot_backend
from cadenza.loop.config import EvalConfig
from cadenza.loop.contracts.records import (
    CheckpointRecord,
    EvalReport,
    EvalRequest,
    JobRunner,
    SeedRange,
)
from cadenza.loop.errors import EvalError, EvalOutputError, JobFailedError

__all__ = ["EvalAgent", "EvalError"]


class EvalAgent(CommandWorker[EvalConfig]):
    """Evaluates policies by a back end's commands."""

    EVENT_STAGE: ClassVar[str] = "eval"

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
        """Return what a policy achieves, with every episode.

        A policy outside the run's folder ``workdir`` is played where ``jobs`` is None. ``stage``
        names the job within the cycle. ``seeds`` has one initial state per episode; None for
        ``cfg.n_episodes`` fixed ones. ``jobs`` runs the command; None for one call of the worker's
        own runner.

        Raises:
            EvalError: The evaluation failed, or measured other initial states than asked.
            ConstitutionError: The command is refused.
            EvalOutputError: The evaluation left no usable report.
        """
        place = JobPlace(run_id=run_id, cycle=cycle, stage=stage, workdir=workdir)
        request = self._request(cycle, place.folder, checkpoint, seeds)
        try:
            self._run(place, self.backend.plan_eval(request), jobs, [checkpoint.path])
        except JobFailedError as error:
            raise EvalError(str(error)) from error
        try:
            report = self.backend.read_eval(request)
        except IntegrityError as error:
            raise EvalOutputError(str(error)) from error
        _require_seeds(report, request.seeds, place)
        told = report.model_dump(include={"success_rate", "task_suite", "n_episodes"})
        self._emit(place, "report", {**told, "stage": stage})
        return report

    def _lerobot(self) -> Backend:
        return lerobot_backend(eval=self.cfg)

    def _request(
        self, cycle: int, folder: Path, checkpoint: CheckpointRecord, seeds: SeedRange | None
    ) -> EvalRequest:
        if seeds is None:
            seeds = OWN_SEEDS.range("compare", cycle, count=self.cfg.n_episodes)
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
    strangers = [
        outcome.seed
        for outcome in report.outcomes
        if not seeds.start <= outcome.seed < seeds.start + seeds.count
    ]
    if strangers:
        raise EvalError(
            f"{place.stage} of cycle {place.cycle}: expected episodes from the seeds "
            f"{seeds.start} to {seeds.start + seeds.count - 1}, got seed {strangers[0]} and "
            f"{len(strangers) - 1} more; see {place.log_path}."
        )
