"""Training worker: one policy of one type on the data of a cycle."""

from pathlib import Path
from typing import ClassVar

from cadenza.core.errors import InputError, IntegrityError
from cadenza.loop.agents.base import CommandWorker, JobPlace, cycle_of
from cadenza.loop.backends.base import Backend, lerobot_backend
from cadenza.loop.config import PolicyRung, TrainConfig
from cadenza.loop.contracts.records import (
    CheckpointRecord,
    DatasetRef,
    JobRunner,
    Proposal,
    TrainRequest,
)
from cadenza.loop.errors import JobFailedError, TrainError, TrainOutputError

__all__ = ["TrainAgent", "TrainError"]


class TrainAgent(CommandWorker[TrainConfig]):
    """Trains policies by a back end's commands."""

    EVENT_STAGE: ClassVar[str] = "train"

    def build_command(
        self,
        rung: PolicyRung,
        dataset: DatasetRef,
        output_dir: Path,
        init_override: str | None = None,
        steps: int | None = None,
    ) -> list[str]:
        """Return the command that trains into ``output_dir``; `run` has the arguments.

        An unknown or repeated flag is a `ConfigurationError`.
        """
        request = self._request(
            cycle_of(output_dir), output_dir, rung, dataset, init_override, steps
        )
        return list(self.backend.plan_train(request).command)

    def run(
        self,
        *,
        run_id: str,
        cycle: int,
        rung: PolicyRung,
        dataset: DatasetRef,
        workdir: Path,
        init_override: str | None = None,
        steps: int | None = None,
        stage: str = "train",
        mix: DatasetRef | None = None,
        mix_ratio: float = 0.5,
        proposal: Proposal | None = None,
        jobs: JobRunner | None = None,
    ) -> CheckpointRecord:
        """Return the trained policy.

        ``init_override`` are weights to start from instead of the rung's, ``steps`` None or 0 for
        the configuration's. Of ``mix``, harvested episodes, comes the share ``mix_ratio`` of
        samples, in [0, 1]. ``proposal`` may move batch and step size, and the steps where none are
        given. ``jobs`` runs the command; None for one call of the worker's own runner.

        Raises:
            TrainError: Training failed.
            ConstitutionError: The command is refused.
            ConfigurationError: Data, policy and environment do not fit together.
            TrainOutputError: The training left no usable policy, as `dry_runner` does.
            InputError: ``steps`` is negative.
        """
        place = JobPlace(run_id=run_id, cycle=cycle, stage=stage, workdir=workdir)
        request = self._request(cycle, place.folder, rung, dataset, init_override, steps)
        request = request.model_copy(update={"mix": mix, "mix_ratio": mix_ratio})
        if proposal is not None:
            moved = {
                "steps": steps or proposal.steps or request.steps,
                "batch_size": proposal.batch_size or request.batch_size,
                "learning_rate": proposal.learning_rate,
            }
            request = request.model_copy(update=moved)
        self._check_features(request, init_override)
        try:
            plan = self.backend.plan_train(request)
            roots = [data.root for data in (dataset, mix) if data is not None]
            self._run(place, plan, jobs, [request.init, *roots])
        except JobFailedError as error:
            raise TrainError(str(error)) from error
        try:
            return self.backend.read_train(request)
        except IntegrityError as error:
            raise TrainOutputError(str(error)) from error

    def _lerobot(self) -> Backend:
        return lerobot_backend(train=self.cfg)

    def _request(
        self,
        cycle: int,
        folder: Path,
        rung: PolicyRung,
        dataset: DatasetRef,
        init_override: str | None,
        steps: int | None,
    ) -> TrainRequest:
        if steps is not None and steps < 0:
            raise InputError(f"TrainAgent: expected steps >= 0, got {steps}.")
        return TrainRequest(
            cycle=cycle,
            rung=rung.name,
            init=init_override or rung.init,
            dataset=dataset,
            steps=steps or self.cfg.steps,
            batch_size=self.cfg.batch_size,
            extra_args=self.cfg.extra_args,
            folder=folder,
        )

    def _check_features(self, request: TrainRequest, own_init: str | None) -> None:
        """Raise before any compute is spent if the data do not fit policy and environment."""
        initial = None
        if own_init is not None:
            initial = CheckpointRecord(policy_type=request.rung, path=own_init, cycle=request.cycle)
        for dataset in (request.dataset, request.mix):
            if dataset is not None:
                self.backend.check_features(dataset, initial)
