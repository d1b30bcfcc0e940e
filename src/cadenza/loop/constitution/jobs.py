"""Typed jobs: what a cleared command will do, in fields instead of flags.

A job carries the canonical text of all its flags too; `TypedJob.argv` is the command to run, and
clearing that gives the same job again.
"""

from pathlib import Path
from typing import Literal, TypeAlias

from pydantic import Field

from cadenza.loop.contracts.records import Record

#: Where weights come from: a path, or a repository of the hub.
WeightsSource: TypeAlias = Path | str
#: Limits of what a job counts.
LimitName: TypeAlias = Literal["max_train_steps", "max_eval_episodes", "max_collect_episodes"]


class TypedJob(Record):
    """A command that the constitution cleared.

    Attributes:
        words: Program, with its sub-commands.
        flags: Key and canonical text of each flag, in the order of the program's table; None for a
            flag without a value.
    """

    words: tuple[str, ...]
    flags: tuple[tuple[str, str | None], ...]

    @property
    def program(self) -> str:
        """Name of the program, looked up in the program table and never a path."""
        return self.words[0]

    def argv(self) -> tuple[str, ...]:
        """Return the command to run, every path absolute and every value in its own word."""
        written = (f"--{key}" if text is None else f"--{key}={text}" for key, text in self.flags)
        return (*self.words, *written)

    def limited(self) -> dict[LimitName, int]:
        """Return what is counted, by the limit that bounds it."""
        return {}

    def environments(self) -> tuple[str, ...]:
        """Return the environment types it plays in."""
        return ()


class _Playing(TypedJob):
    """A job that plays episodes.

    Attributes:
        env_type: Environment.
        episodes: Episodes played, or wanted.
    """

    env_type: str
    episodes: int = Field(gt=0)

    def limited(self) -> dict[LimitName, int]:
        """Return the number of episodes, bounded like those of an evaluation."""
        return {"max_eval_episodes": self.episodes}

    def environments(self) -> tuple[str, ...]:
        """Return its environment."""
        return (self.env_type,)


class TrainJob(TypedJob):
    """Trains a policy.

    Attributes:
        steps: Gradient steps.
        output_dir: Folder it creates; None for a resumed job, which goes on in its own.
        rung: Policy type; None when ``init`` tells it.
        init: Weights to start from; None starts afresh.
        dataset_root: Folder of local data; None for data named by ``repo_id``.
        repo_id: Name of the data; None for a native job, which takes a folder.
        batch_size: Samples per step; None for the program's own.
        resume_from: Settings of the run that is resumed; None for a new one.
        env_type: Environment of evaluations during training; None for none.
        eval_episodes: Episodes of each; None for the program's own.
    """

    steps: int = Field(gt=0)
    output_dir: Path | None = None
    rung: str | None = None
    init: WeightsSource | None = None
    dataset_root: Path | None = None
    repo_id: str | None = None
    batch_size: int | None = None
    resume_from: Path | None = None
    env_type: str | None = None
    eval_episodes: int | None = None

    def limited(self) -> dict[LimitName, int]:
        """Return gradient steps, and episodes evaluated meanwhile."""
        counted: dict[LimitName, int] = {"max_train_steps": self.steps}
        if self.eval_episodes is not None:
            counted["max_eval_episodes"] = self.eval_episodes
        return counted

    def environments(self) -> tuple[str, ...]:
        """Return the environment evaluated in meanwhile, if any."""
        return () if self.env_type is None else (self.env_type,)


class EvalJob(_Playing):
    """Measures a policy.

    Attributes:
        policy: The policy.
        output_dir: Folder it creates.
        seed_start: Seed of the first episode; None for the program's own.
        batch_size: Environments stepped at once; None for the program's own.
    """

    policy: WeightsSource
    output_dir: Path
    seed_start: int | None = None
    batch_size: int | None = None


class CollectJob(_Playing):
    """Collects episodes of an expert.

    Attributes:
        output_dir: Folder it creates.
        repo_id: Name of the dataset.
        seed_start: First seed of its initial states.
        seed_count: How many of them.
    """

    output_dir: Path
    repo_id: str
    seed_start: int
    seed_count: int

    def limited(self) -> dict[LimitName, int]:
        """Return the number of episodes and of attempts, which have a limit of their own."""
        return {"max_collect_episodes": max(self.episodes, self.seed_count)}


class HarvestJob(_Playing):
    """Collects successful episodes of a policy.

    Attributes:
        policy: The policy.
        output_dir: Folder it creates.
        repo_id: Name of the dataset.
        seed_start: First seed of its initial states; None for the program's own.
        attempts: Most episodes played; None for the program's own factor on ``episodes``.
        device: Torch device; None for the program's own.
    """

    policy: WeightsSource
    output_dir: Path
    repo_id: str
    seed_start: int | None = None
    attempts: int | None = None
    device: str | None = None

    def limited(self) -> dict[LimitName, int]:
        """Return the number of episodes wanted and of attempts."""
        counted = super().limited()
        if self.attempts is not None:
            counted["max_collect_episodes"] = self.attempts
        return counted


class MergeJob(TypedJob):
    """Joins datasets.

    Attributes:
        repo_id: Name of the new dataset.
        sources: Folders of its parts; empty when they are named by ``source_ids``.
        source_ids: Names of its parts.
        output_dir: Folder it creates; None for one below the program's home of datasets, which
            the environment of the job sets.
    """

    repo_id: str
    sources: tuple[Path, ...] = ()
    source_ids: tuple[str, ...] = ()
    output_dir: Path | None = None


class SelectJob(TypedJob):
    """Chooses episodes of a dataset.

    Attributes:
        repo_id: Name of the dataset.
        suite: Suite whose episodes are taken.
        limit: Most of them; None for all.
        result_json: File it writes; None for a program that prints.
    """

    repo_id: str
    suite: str
    limit: int | None = None
    result_json: Path | None = None
