"""What a back end must offer: commands for the steps of a cycle, and readers of what they left.

A back end decides nothing and runs nothing. It turns a request into a `JobPlan`; the loop clears
the plan with the constitution, runs it, and asks the back end to read the outcome.
"""

from pathlib import Path
from typing import Literal, Protocol

from pydantic import Field

from cadenza.loop.contracts.records import (
    CheckpointRecord,
    DatasetRef,
    EvalReport,
    Proposal,
    Record,
)
from cadenza.loop.jobs.spec import Device, ExistingOutput


class JobPlan(Record):
    """A command that a back end wants to be run.

    Attributes:
        command: Program name and arguments.
        output_dir: Folder it creates.
        result_path: JSON file it writes as its last act; None if it has no such option.
        device: What its seconds are charged to.
        on_existing: What happens to an ``output_dir`` that a killed attempt left.
    """

    command: tuple[str, ...]
    output_dir: Path
    result_path: Path | None = None
    device: Device = "cpu"
    on_existing: ExistingOutput = "keep"


class SeedRange(Record):
    """Initial-state seeds [start, start + count).

    Attributes:
        start: First seed.
        count: How many.
    """

    start: int = Field(ge=0)
    count: int = Field(gt=0)

    def overlaps(self, other: "SeedRange") -> bool:
        """Return whether the two share a seed."""
        return self.start < other.start + other.count and other.start < self.start + self.count


class DataRequest(Record):
    """Resolve or collect the data of a cycle.

    Attributes:
        cycle: The cycle.
        proposal: What the proposer asks for.
        seeds: Initial states that new episodes may use.
        folder: Folder of this step.
    """

    cycle: int
    proposal: Proposal
    seeds: SeedRange
    folder: Path


class TrainRequest(Record):
    """Train one policy.

    Attributes:
        cycle: The cycle.
        rung: Name of the policy type.
        init: Weights to start from; None starts afresh.
        dataset: Data of the cycle.
        mix: Harvested episodes to blend in; None for none.
        mix_ratio: Share of samples drawn from ``mix``, in [0, 1].
        steps: Gradient steps.
        batch_size: Samples per step.
        learning_rate: Step size at the first update; None for the back end's own.
        extra_args: Further arguments of the user's configuration.
        folder: Folder of this step.
    """

    cycle: int
    rung: str
    init: str | None
    dataset: DatasetRef
    mix: DatasetRef | None = None
    mix_ratio: float = Field(default=0.5, ge=0.0, le=1.0)
    steps: int = Field(gt=0)
    batch_size: int = Field(gt=0)
    learning_rate: float | None = None
    extra_args: tuple[str, ...] = ()
    folder: Path


class EvalRequest(Record):
    """Evaluate one policy.

    Attributes:
        cycle: The cycle.
        checkpoint: The policy.
        seeds: Initial states, one per episode.
        batch_size: Environments stepped at once, or episodes between two saves of a back end that
            steps one.
        extra_args: Further arguments of the user's configuration.
        folder: Folder of this step.
    """

    cycle: int
    checkpoint: CheckpointRecord
    seeds: SeedRange
    batch_size: int = Field(gt=0)
    extra_args: tuple[str, ...] = ()
    folder: Path


class HarvestRequest(Record):
    """Collect successful episodes of a policy, or of an expert where the policy failed.

    Attributes:
        cycle: The cycle.
        checkpoint: The policy.
        episodes: Successful episodes wanted.
        seeds: Initial states it may use; its count bounds the attempts.
        focus: Tasks to play more of.
        starts: ``"failed"`` for what an expert shows where the policy failed.
        repo_id: Name of the dataset it writes.
        device: Torch device.
        task_text: Instruction stored with each frame; None for the back end's own.
        extra_args: Further arguments of the user's configuration.
        folder: Folder of this step.
    """

    cycle: int
    checkpoint: CheckpointRecord
    episodes: int = Field(gt=0)
    seeds: SeedRange
    focus: tuple[str, ...] = ()
    starts: Literal["solved", "failed"] = "solved"
    repo_id: str
    device: str = "cpu"
    task_text: str | None = None
    extra_args: tuple[str, ...] = ()
    folder: Path


class MergeRequest(Record):
    """Join datasets of equal features.

    Attributes:
        sources: Local datasets, in order.
        repo_id: Name of the new dataset.
        folder: Folder of this step.
    """

    sources: tuple[DatasetRef, ...] = Field(min_length=2)
    repo_id: str
    folder: Path


class Harvest(Record):
    """What a collection of rollouts brought.

    Attributes:
        kept: Episodes stored.
        successes: Successful attempts.
        attempts: Episodes played.
        dataset: The stored episodes; None when none was kept.
    """

    kept: int = Field(ge=0)
    successes: int = Field(ge=0)
    attempts: int = Field(ge=0)
    dataset: DatasetRef | None = None

    @property
    def success_rate(self) -> float:
        """Successful attempts / attempts; 0 without attempts."""
        return self.successes / self.attempts if self.attempts else 0.0


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

        Raises:
            ConfigurationError: They differ; the message names the feature and both shapes.
        """
        ...
