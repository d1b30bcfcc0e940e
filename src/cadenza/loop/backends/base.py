"""What a back end must offer: jobs for the steps of a cycle, and readers of what they left.

A back end decides nothing and runs nothing. It turns a request into a `JobPlan` with a typed job;
the constitution judges the job, the loop runs it and asks the back end to read the outcome.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from cadenza.core.errors import ConfigurationError
from cadenza.core.strict_json import parse_json_object
from cadenza.loop.config import LoopConfig
from cadenza.loop.constitution import JobPlan
from cadenza.loop.contracts.records import (
    CheckpointRecord,
    DataRequest,
    DatasetRef,
    EvalReport,
    EvalRequest,
    Harvest,
    HarvestRequest,
    MergeRequest,
    TrainRequest,
)
from cadenza.loop.jobs.terms import ProgramTable


class Backend(Protocol):
    """Commands and readers of one training stack.

    Each ``plan_*`` has a ``read_*`` that takes the same request after the plan's command ended
    with exit code 0, checks what it left (present, of the right kind, digest taken), and raises
    `cadenza.core.errors.IntegrityError` or a stage's error otherwise.
    """

    @property
    def name(self) -> str:
        """Name in configurations."""
        ...

    @property
    def capabilities(self) -> dict[str, str]:
        """What the probe found: versions and flag sets; stored with the run."""
        ...

    def plan_data(self, request: DataRequest) -> JobPlan | None:
        """Return the command that makes the data; None if there is nothing to run."""
        ...

    def read_data(self, request: DataRequest) -> DatasetRef:
        """Return the data of the cycle."""
        ...

    def plan_train(self, request: TrainRequest) -> JobPlan:
        """Return the command that trains."""
        ...

    def read_train(self, request: TrainRequest) -> CheckpointRecord:
        """Return the trained policy with its digest."""
        ...

    def plan_eval(self, request: EvalRequest) -> JobPlan:
        """Return the command that evaluates."""
        ...

    def read_eval(self, request: EvalRequest) -> EvalReport:
        """Return what the evaluation measured, with every episode."""
        ...

    def plan_harvest(self, request: HarvestRequest) -> JobPlan:
        """Return the command that collects successes."""
        ...

    def read_harvest(self, request: HarvestRequest) -> Harvest:
        """Return what the collection brought."""
        ...

    def plan_merge(self, request: MergeRequest) -> JobPlan:
        """Return the command that joins datasets."""
        ...

    def read_merge(self, request: MergeRequest) -> DatasetRef:
        """Return the joined dataset with its digest."""
        ...

    def check_features(self, dataset: DatasetRef, checkpoint: CheckpointRecord | None) -> None:
        """Raise unless dataset, policy and environment agree on names, shapes and image sizes.

        The `ConfigurationError` names the feature and both shapes.
        """
        ...


@runtime_checkable
class OwnPrograms(Protocol):
    """A back end whose programs lie in an environment of their own."""

    @property
    def programs(self) -> Mapping[str, Sequence[str]]:
        """Absolute executable and first arguments by name."""
        ...


def make_backend(config: LoopConfig, *, environ: Mapping[str, str] = os.environ) -> Backend:
    """Return the back end of a run; ``environ`` says where LeRobot is.

    Raises:
        ConfigurationError: Its settings do not fit it.
        MissingExtraError: There is no LeRobot environment.
    """
    if config.backend == "lerobot":
        from cadenza.loop.backends.lerobot import LeRobotBackend

        return LeRobotBackend(config, environ=environ)
    from cadenza.loop.backends.native import NativeBackend

    return NativeBackend(config)


def program_table(backend: Backend) -> ProgramTable:
    """Return what the names in the commands of a back end stand for.

    Raises:
        MissingExtraError: Its programs are not installed.
        ConfigurationError: Their environment lacks one of them.
    """
    table = ProgramTable.native()
    return table.extended(backend.programs) if isinstance(backend, OwnPrograms) else table


def dataset_info(root: Path) -> dict[str, Any]:
    """Return what the LeRobotDataset in ``root`` says of itself; `IntegrityError` if damaged."""
    path = root / "meta" / "info.json"
    try:
        return parse_json_object(path.read_bytes(), source=str(path))
    except OSError as error:
        raise ConfigurationError(
            f"{path}: expected the description of a LeRobotDataset v3.0, got '{error.strerror}'; "
            "check seed_root."
        ) from error


def lerobot_backend(**sections: Any) -> Backend:
    """Return LeRobot's back end for workers that are made without one, as in LeAgents.

    ``sections`` are any of ``train``, ``eval``, ``improve`` (sections of `LoopConfig`) and
    ``task_filter``, with defaults for the others; a `ConfigurationError` if one does not fit.
    """
    from cadenza.loop.backends.lerobot import LeRobotBackend

    task_filter, measures = sections.pop("task_filter", None), "eval" in sections
    document: dict[str, Any] = {
        "run_name": "worker",
        "seed_dataset": "local/seed",
        "backend": "lerobot",
        "data": {"task_filter": task_filter},
        **sections,
    }
    config = LoopConfig.from_document(document, source="default_backend")
    return LeRobotBackend(config, measures=measures)
