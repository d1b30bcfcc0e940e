"""What the parts of the loop hand to one another; every record is a JSON document.

Jobs:  one command of one step of one cycle. A job's key is (run, cycle, stage); whoever asks for a
       job whose key ended well gets the recorded end, and nothing runs twice. A job must therefore
       be repeatable: killed at any point and started again with the same command it goes on, or
       starts over, and leaves the same bytes.
"""

from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, Protocol, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

#: Longest note we keep, characters; notes come from language models too.
MAX_NOTES: Final = 500
#: How a decision's reason begins to tell what the comparison after it can show.
OUTLOOK: Final = "The next comparison has a level of"

#: What a proposal asks of the data stage.
ProposalAction: TypeAlias = Literal["reuse_seed", "recollect_failing"]
#: A share of episodes, in [0, 1].
Rate: TypeAlias = Annotated[float, Field(ge=0.0, le=1.0)]
#: A name that people and files use: no control characters, not empty.
Name: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=200)]


class Record(BaseModel):
    """Base of every record: immutable, unknown keys refused, NaN and infinity refused."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False
    )


class Proposal(Record):
    """What a proposer wants the next cycle to train on.

    Attributes:
        action: ``"reuse_seed"`` takes the seed data evenly; ``"recollect_failing"`` draws more of
            the tasks in ``focus``.
        dataset: Seed dataset; proposers may name no other.
        num_episodes: Episodes to train on, >= 1; None for all there are.
        focus: Names of tasks that fail, worst first; empty means all tasks evenly.
        learning_rate: Step size at the first update; None for the back end's own.
        steps: Gradient steps; None for the configuration's.
        batch_size: Samples per step; None for the configuration's.
        rung: Policy type of the ladder to train from now on; None for the present one.
    """

    action: ProposalAction
    dataset: Name
    num_episodes: int | None = Field(default=None, ge=1)
    notes: Annotated[str, StringConstraints(max_length=MAX_NOTES)] = ""
    focus: tuple[Name, ...] = ()
    learning_rate: float | None = Field(default=None, gt=0)
    steps: int | None = Field(default=None, ge=1)
    batch_size: int | None = Field(default=None, ge=1)
    rung: Name | None = None


class DatasetRef(Record):
    """A dataset, or a part of one.

    Attributes:
        revision: Version of a dataset on a hub; None for a local one.
        root: Folder of a local dataset; None for one on a hub.
        episodes: Indices of the episodes that count; they win over ``num_episodes``, the number of
            episodes that count from the first. None for all.
        sha256: Digest of a local dataset's files; None for one on a hub.
    """

    repo_id: Name
    revision: str | None = None
    root: str | None = None
    episodes: tuple[int, ...] | None = None
    num_episodes: int | None = Field(default=None, ge=0)
    notes: str = ""
    sha256: str | None = None


class CheckpointRecord(Record):
    """A trained policy, in a file or folder.

    Attributes:
        policy_type: Name of the rung that trained it.
        cycle: Cycle that trained it; -1 for one that the run started from.
        sha256: Digest of the weights; None before they were checked.
    """

    policy_type: Name
    path: str
    cycle: int = Field(ge=-1)
    blessed: bool = False
    sha256: str | None = None


class EpisodeOutcome(Record):
    """One evaluation episode.

    Attributes:
        task: Task, or partner, that the episode was played on.
        seed: Seed of its initial state; equal tasks and seeds pair episodes of two policies.
        success: Whether the task's success predicate held.
        score: Graded result, e.g. the largest reward; None where the task has none.
    """

    task: Name
    seed: int = Field(ge=0)
    success: bool
    score: float | None = None


class EvalReport(Record):
    """What one evaluation of one policy measured; ``raw`` as it wrote it, episodes in order."""

    checkpoint: str
    env_type: str
    task_suite: str
    n_episodes: int = Field(ge=0)
    success_rate: Rate
    per_task: dict[str, Rate] = Field(default_factory=dict)
    raw: dict[str, Any] = Field(default_factory=dict)
    outcomes: tuple[EpisodeOutcome, ...] = ()


#: Devices that budgets are counted for.
Device: TypeAlias = Literal["cpu", "gpu"]
#: What happens, before an attempt, to an output folder that an earlier attempt left.
ExistingOutput: TypeAlias = Literal["keep", "remove"]
#: How a job stands.
JobStatus: TypeAlias = Literal["pending", "running", "succeeded", "failed", "cancelled"]


class JobKey(Record):
    """What a job is for; ``stage``, e.g. ``eval_candidate_0``, is unique within the cycle."""

    run_id: Name
    cycle: int = Field(ge=0)
    stage: Name

    def log_in(self, run_folder: Path) -> Path:
        """Return the log of the job below the folder of its run."""
        return run_folder / f"cycle_{self.cycle}" / f"{self.stage}.log"

    def attempts_beside(self, log_path: Path) -> Path:
        """Return the folder of the job's attempts, ``jobs/<stage>`` beside its log."""
        return log_path.parent / "jobs" / self.stage


class JobSpec(Record):
    """One command to run, cleared by the constitution; its output goes to ``log_path``.

    Attributes:
        command: Program name and arguments. The first is a name of the program table, never a path;
            the runner resolves it.
        output_dir: Folder that the command creates and owns.
        result_path: JSON file that the command writes atomically, as its last act; None for a
            program that has no such option, whose exit code must then be trusted.
        device: What its seconds are charged to.
        on_existing: ``"keep"`` for a command that goes on from what an earlier attempt left;
            ``"remove"`` for one that refuses an existing ``output_dir``.
    """

    key: JobKey
    command: tuple[str, ...] = Field(min_length=1)
    output_dir: Path
    log_path: Path
    result_path: Path | None = None
    device: Device = "cpu"
    on_existing: ExistingOutput = "keep"


class JobEnd(Record):
    """How a job ended.

    Attributes:
        exit_code: Exit status of the command; negative for the signal that ended it.
        duration_s: Seconds of all its attempts, failed ones included.
        result_sha256: Digest of the result file; None where there is none.
    """

    key: JobKey
    exit_code: int
    duration_s: float = Field(ge=0.0)
    attempts: int = Field(ge=1)
    log_path: Path
    result_sha256: str | None = None


class JobRunner(Protocol):
    """Runs jobs, each key at most once to its end, whatever process is killed meanwhile."""

    def run(self, spec: JobSpec) -> JobEnd:
        """Return the end of ``spec``: recorded, adopted from a live process, or run now.

        Raises:
            JobFailedError: It failed in every attempt; the message names the log.
            BudgetExceededError: The budget ended before the job did.
            StopRequestedError: Someone asked the run to stop; the job was ended.
            IntegrityError: It succeeded before, and its result file was changed since.
            StaleLeaseError: Another controller took the run over.
        """
        ...


class SeedRange(Record):
    """Initial-state seeds [start, start + count)."""

    start: int = Field(ge=0)
    count: int = Field(gt=0)

    def overlaps(self, other: "SeedRange") -> bool:
        """Return whether the two share a seed."""
        return self.start < other.start + other.count and other.start < self.start + self.count


class DataRequest(Record):
    """Resolve or collect the data of a cycle; new episodes may use ``seeds``."""

    cycle: int
    proposal: Proposal
    seeds: SeedRange
    folder: Path


class TrainRequest(Record):
    """Train one policy.

    Attributes:
        init: Weights to start from; None starts afresh.
        mix: Harvested episodes to blend in, at a share of ``mix_ratio`` of the samples; None for
            none.
        learning_rate: Step size at the first update; None for the back end's own.
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
        seeds: Initial states, one per episode.
        batch_size: Environments stepped at once, or episodes between two saves of a back end that
            steps one.
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
        seeds: Initial states it may use; its count bounds the attempts.
        focus: Tasks to play more of.
        starts: ``"failed"`` for what an expert shows where the policy failed.
        task_text: Instruction stored with each frame; None for the back end's own.
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
    """Join local datasets of equal features, in order, into ``repo_id``, below ``folder``."""

    sources: tuple[DatasetRef, ...] = Field(min_length=2)
    repo_id: str
    folder: Path


class Harvest(Record):
    """What a collection of rollouts brought; ``dataset`` is None when none was kept."""

    kept: int = Field(ge=0)
    successes: int = Field(ge=0)
    attempts: int = Field(ge=0)
    dataset: DatasetRef | None = None

    @property
    def success_rate(self) -> float:
        """Successful attempts / attempts; 0 without attempts."""
        return self.successes / self.attempts if self.attempts else 0.0
