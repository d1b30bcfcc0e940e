"""What the parts of the loop hand to one another; every record is a JSON document."""

from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

#: Longest note we keep, characters; notes come from language models too.
MAX_NOTES: Final = 500

#: What a proposal asks of the data stage.
ProposalAction: TypeAlias = Literal["reuse_seed", "recollect_failing"]
#: A share of episodes, in [0, 1].
Rate: TypeAlias = Annotated[float, Field(ge=0.0, le=1.0)]
#: A name that people and files use: no control characters, not empty.
Name: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=200)]


class Record(BaseModel):
    """Base of every record: immutable, unknown keys refused, NaN and infinity refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Proposal(Record):
    """What a proposer wants the next cycle to train on.

    Attributes:
        action: ``"reuse_seed"`` takes the seed data evenly; ``"recollect_failing"`` draws more of
            the tasks in ``focus``.
        dataset: Seed dataset; proposers may name no other.
        num_episodes: Episodes to train on, >= 1; None for all there are.
        notes: Why, for people.
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
        repo_id: Its name.
        revision: Version of a dataset on a hub; None for a local one.
        root: Folder of a local dataset; None for one on a hub.
        episodes: Indices of the episodes that count; they win over ``num_episodes``.
        num_episodes: Number of episodes that count, from the first; None for all.
        notes: Where it comes from.
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
    """A trained policy.

    Attributes:
        policy_type: Name of the rung that trained it.
        path: Folder or file of the weights.
        cycle: Cycle that trained it; -1 for one that the run started from.
        blessed: Whether it is the run's best so far.
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
    """What one evaluation of one policy measured.

    Attributes:
        checkpoint: Path of the policy.
        env_type: Environment.
        task_suite: Suite of tasks within it.
        n_episodes: Episodes played.
        success_rate: Share of them that succeeded.
        per_task: The same by task.
        raw: What the evaluation wrote, as it wrote it.
        outcomes: Episodes in the order played.
    """

    checkpoint: str
    env_type: str
    task_suite: str
    n_episodes: int = Field(ge=0)
    success_rate: Rate
    per_task: dict[str, Rate] = Field(default_factory=dict)
    raw: dict[str, Any] = Field(default_factory=dict)
    outcomes: tuple[EpisodeOutcome, ...] = ()
