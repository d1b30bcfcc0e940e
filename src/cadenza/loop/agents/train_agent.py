"""Trains one policy of one type on the data of a cycle."""

from pathlib import Path
from typing import ClassVar

from cadenza.core.errors import InputError
from cadenza.loop.agents.base import Agent, JobPlace, cycle_of
from cadenza.loop.backends.base import Backend, lerobot_backend
from cadenza.loop.config import PolicyRung, TrainConfig
from cadenza.loop.contracts.records import (
    CheckpointRecord,
    DatasetRef,
    JobRunner,
    Proposal,
    TrainRequest,
)
from cadenza.loop.errors import TrainError, TrainOutputError

__all__ = ["TrainAgent", "TrainError"]


class TrainAgent(Agent[TrainConfig]):
    """Trains policies by a back end's commands."""

    EVENT_STAGE: ClassVar = "train"
    FAILED: ClassVar = TrainError
    UNUSABLE: ClassVar = TrainOutputError

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
        cycle = cycle_of(output_dir)
        request = self._request(cycle, output_dir, rung, dataset, init_override, steps)
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
        """Return the trained policy; further arguments as in `Agent`.

        ``init_override`` are weights to start from instead of the rung's, ``steps`` None or 0 for
        the configuration's. Of ``mix``, harvested episodes, comes the share ``mix_ratio`` of
        samples, in [0, 1]. ``proposal`` may move batch and step size, and the steps where none are
        given.

        Raises:
            TrainError: Training failed, or left no usable policy, as `dry_runner` does.
            ConstitutionError: The command is refused.
            ConfigurationError: Data, policy and environment do not fit together.
            InputError: ``steps`` is negative.
        """
        place = JobPlace(run_id=run_id, cycle=cycle, stage=stage, workdir=workdir)
        request = self._request(cycle, place.folder, rung, dataset, init_override, steps)
        changes: dict[str, object] = {"mix": mix, "mix_ratio": mix_ratio}
        if proposal is not None:
            changes |= {
                "steps": steps or proposal.steps or request.steps,
                "batch_size": proposal.batch_size or request.batch_size,
                "learning_rate": proposal.learning_rate,
            }
        request, backend = request.model_copy(update=changes), self.backend
        initial = None
        if init_override is not None:
            initial = CheckpointRecord(policy_type=rung.name, path=init_override, cycle=cycle)
        data = [one for one in (dataset, mix) if one is not None]
        for one in data:  # before any compute is spent
            backend.check_features(one, initial)
        given = [request.init, *(one.root for one in data)]
        return self._made(place, request, backend.plan_train, backend.read_train, jobs, given)

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
