"""What the table knows of a program: its flags, their kinds, and the typed job that they make.

A program that is not in the table cannot run, nor a flag that is not in its program's entry; the
file of rules chooses among the programs and can add flags. A job tells in fields what a cleared
command will do. It carries the canonical text of all its flags too; `TypedJob.argv` is the command
to run, and clearing that gives the same job again.

Adding one:  an entry here or in `lerobot_programs`; its type of job here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

from pydantic import Field

from cadenza.loop.constitution.flags import denied
from cadenza.loop.constitution.kinds import (
    NAME,
    REPOSITORY,
    Choice,
    FilePath,
    Integer,
    Kind,
    Listing,
    Number,
    Switch,
)
from cadenza.loop.contracts.records import Record

#: Limits of what a job counts.
LimitName: TypeAlias = Literal["max_train_steps", "max_eval_episodes", "max_collect_episodes"]


class TypedJob(Record):
    """A command that the constitution cleared; a subclass has what its limits count.

    ``flags`` are in the order of the program's table; the text of one without a value is None.
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
        """Return what is counted, by the limit that bounds it; episodes of LeRobot for one task."""
        return {}

    def environments(self) -> tuple[str, ...]:
        """Return the environment types it plays in."""
        return ()

    def last_seed(self) -> int | None:
        """Return the largest seed of an initial state; None without seeds of its own."""
        return None

    def hub_datasets(self) -> tuple[tuple[str, Path | None], ...]:
        """Return the datasets that a hub is asked for where their folder lacks them, by name."""
        return ()


class _Playing(TypedJob):
    """A job that plays episodes, or wants so many."""

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
        dataset_root: Folder of local data; None for data named by ``repo_id``.
        mix_repo_id: Name of a second dataset; None for none.
        env_type: Environment of evaluations during training; None for none.
        suites: Tasks or suites of tasks that it evaluates in; empty for the environment's own.
        task_ids: Numbers of the tasks it takes of each; empty for all.
        eval_every: Steps from one evaluation to the next, 0 for none; None without ``env_type``.
        eval_episodes: Episodes of each, in each task; None without ``env_type``.
    """

    steps: int = Field(gt=0)
    dataset_root: Path | None = None
    repo_id: str | None = None
    mix_repo_id: str | None = None
    mix_root: Path | None = None
    env_type: str | None = None
    suites: tuple[str, ...] = ()
    task_ids: tuple[int, ...] = ()
    eval_every: int | None = None
    eval_episodes: int | None = None

    def limited(self) -> dict[LimitName, int]:
        """Return gradient steps, and episodes evaluated meanwhile, at least those of one time."""
        counted: dict[LimitName, int] = {"max_train_steps": self.steps}
        if self.eval_episodes is not None:
            times = self.steps // self.eval_every if self.eval_every else 0
            counted["max_eval_episodes"] = self.eval_episodes * max(1, times)
        return counted

    def environments(self) -> tuple[str, ...]:
        """Return the environment evaluated in meanwhile, if any."""
        return () if self.env_type is None else (self.env_type,)

    def hub_datasets(self) -> tuple[tuple[str, Path | None], ...]:
        """Return its data, and the second ones."""
        named = ((self.repo_id, self.dataset_root), (self.mix_repo_id, self.mix_root))
        return tuple((name, root) for name, root in named if name is not None)


class EvalJob(_Playing):
    """Measures a policy; suites and tasks as in `TrainJob`, ``seed_start`` is the first seed."""

    suites: tuple[str, ...] = ()
    task_ids: tuple[int, ...] = ()
    seed_start: int | None = None

    def last_seed(self) -> int | None:
        """Return the seed of the last episode."""
        return None if self.seed_start is None else self.seed_start + self.episodes - 1


class CollectJob(_Playing):
    """Collects episodes of an expert, from ``seed_count`` initial states at most."""

    seed_start: int
    seed_count: int

    def limited(self) -> dict[LimitName, int]:
        """Return the number of episodes and of attempts, which have a limit of their own."""
        return {"max_collect_episodes": max(self.episodes, self.seed_count)}

    def last_seed(self) -> int | None:
        """Return the seed of the last attempt."""
        return self.seed_start + self.seed_count - 1


class HarvestJob(_Playing):
    """Collects successful episodes of a policy in ``attempts`` at most."""

    seed_start: int
    attempts: int

    def limited(self) -> dict[LimitName, int]:
        """Return the number of episodes wanted and of attempts."""
        return {"max_eval_episodes": self.episodes, "max_collect_episodes": self.attempts}

    def last_seed(self) -> int | None:
        """Return the seed of the last attempt."""
        return self.seed_start + self.attempts - 1


class MergeJob(TypedJob):
    """Joins datasets: the folders of its parts, and their names for programs that want them."""

    sources: tuple[Path, ...]
    source_ids: tuple[str, ...] = ()

    def hub_datasets(self) -> tuple[tuple[str, Path | None], ...]:
        """Return its parts, where they have names."""
        return tuple(zip(self.source_ids, self.sources, strict=False))


class SelectJob(TypedJob):
    """Chooses episodes of a dataset, in a folder or of the hub."""

    repo_id: str
    root: Path | None = None

    def hub_datasets(self) -> tuple[tuple[str, Path | None], ...]:
        """Return the dataset."""
        return ((self.repo_id, self.root),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One program, or one of its sub-commands.

    Attributes:
        fields: The job's fields, by the flag that fills each.
        required: Groups of flags; one flag of each group must be given.
        exclusive: Groups of flags of which at most one may be given.
        together: Groups of flags that are given all or not at all.
        implied: A flag, and a group of which one must be given beside it.
        seed_limit: What the seeds of its initial states lie below.
        per_task: Whether it plays its episodes in each task.
        weakening: Beginnings of arguments that switch the guard off, leave tasks of the suite out
            or ignore the seeds; refused unless the rules allow them.
    """

    words: tuple[str, ...]
    job: type[TypedJob]
    keys: Mapping[str, Kind]
    fields: Mapping[str, str]
    required: tuple[frozenset[str], ...]
    exclusive: tuple[frozenset[str], ...] = ()
    together: tuple[frozenset[str], ...] = ()
    implied: tuple[tuple[str, frozenset[str]], ...] = ()
    seed_limit: int = 2**63
    per_task: bool = False
    weakening: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Its words, joined by blanks."""
        return " ".join(self.words)

    def switches(self) -> frozenset[str]:
        """Return the flags that take no value."""
        return frozenset(key for key, kind in self.keys.items() if isinstance(kind, Switch))

    def require_groups(self, given: set[str]) -> None:
        """Refuse flags that do not belong together: one is missing, or two exclude each other."""
        for group in self.together:
            if group & given and not group <= given:
                raise denied(
                    "missing_flag",
                    f"expected all or none of {sorted(group)}, got {sorted(group & given)}",
                )
        for group in self.exclusive:
            if len(group & given) > 1:
                raise denied(
                    "conflicting_flags",
                    f"expected one of {sorted(group)}, got {sorted(group & given)}",
                )
        beside = tuple((group, f"beside --{key}") for key, group in self.implied if key in given)
        always = tuple((group, f"for {self.name}") for group in self.required)
        for group, why in (*always, *beside):
            if not group & given:
                names, got = " or --".join(sorted(group)), "neither" if len(group) > 1 else "none"
                raise denied("missing_flag", f"expected --{names} {why}, got {got}")


def each(*keys: str) -> tuple[frozenset[str], ...]:
    """Return one group per flag: all of ``keys`` are required."""
    return tuple(frozenset({key}) for key in keys)


_COUNT: Final = Integer(1)
_SEED: Final = Integer()
#: Initial states of one cycle and purpose; the seed ledger hands out no more.
_SEED_COUNT: Final = Integer(1, 2**16)
_BATCH: Final = Integer(1, 2**16)
_READ: Final = FilePath()
_WRITE: Final = FilePath(write=True)
_FILTER: Final = Choice(("on", "off"))
_UNGUARDED: Final = ("--filter=off",)
_NAMES: Final = Listing(NAME, longest=1000)

_COLLECTING: Final[dict[str, Kind]] = {
    "task": NAME,
    "partners": _NAMES,
    "episodes": _COUNT,
    "seed-start": _SEED,
    "seed-count": _SEED_COUNT,
    "focus": _NAMES,
    "out": _WRITE,
    "repo-id": REPOSITORY,
    "result-json": _WRITE,
}
_COLLECTING_FIELDS: Final = {
    "task": "env_type",
    "episodes": "episodes",
    "seed-start": "seed_start",
}
_COLLECTING_REQUIRED: Final = each(
    "task", "episodes", "seed-start", "seed-count", "out", "repo-id", "result-json"
)

COLLECT: Final = Program(
    words=("cadenza", "job", "collect"),
    job=CollectJob,
    keys={**_COLLECTING, "expert": NAME},
    fields={**_COLLECTING_FIELDS, "seed-count": "seed_count"},
    required=_COLLECTING_REQUIRED,
)
HARVEST: Final = Program(
    words=("cadenza", "job", "harvest"),
    job=HarvestJob,
    keys={
        "policy": _READ,
        **_COLLECTING,
        "filter": _FILTER,
        "starts": Choice(("solved", "failed")),
    },
    fields={**_COLLECTING_FIELDS, "seed-count": "attempts"},
    required=(*each("policy"), *_COLLECTING_REQUIRED),
    weakening=_UNGUARDED,
)
TRAIN: Final = Program(
    words=("cadenza", "job", "train"),
    job=TrainJob,
    keys={
        "rung": NAME,
        "dataset": _READ,
        "episodes": Listing(Integer(0, 2**31)),
        "first-episodes": _COUNT,
        "mix": _READ,
        "mix-ratio": Number(0.0, 1.0),
        "steps": _COUNT,
        "batch-size": _BATCH,
        "learning-rate": Number(0.0, 1.0),
        "max-epochs": Number(0.0, 1e6),
        "init": _READ,
        "seed": _SEED,
        "out": _WRITE,
        "result-json": _WRITE,
    },
    fields={"dataset": "dataset_root", "steps": "steps"},
    required=each("rung", "dataset", "steps", "batch-size", "seed", "out", "result-json"),
    exclusive=(frozenset({"episodes", "first-episodes"}),),
    together=(frozenset({"mix", "mix-ratio"}),),
)
EVALUATE: Final = Program(
    words=("cadenza", "job", "evaluate"),
    job=EvalJob,
    keys={
        "policy": _READ,
        "task": NAME,
        "partners": _NAMES,
        "filter": _FILTER,
        "seed-start": _SEED,
        "episodes": _COUNT,
        "batch-size": _BATCH,
        "out": _WRITE,
        "result-json": _WRITE,
    },
    fields={"task": "env_type", "seed-start": "seed_start", "episodes": "episodes"},
    required=each("policy", "task", "seed-start", "episodes", "out", "result-json"),
    weakening=_UNGUARDED,
)
MERGE: Final = Program(
    words=("cadenza", "job", "merge"),
    job=MergeJob,
    keys={
        "sources": Listing(_READ, longest=1000),
        "out": _WRITE,
        "repo-id": REPOSITORY,
        "result-json": _WRITE,
    },
    fields={"sources": "sources"},
    required=each("sources", "out", "repo-id", "result-json"),
)

NATIVE_PROGRAMS: Final = (COLLECT, TRAIN, EVALUATE, HARVEST, MERGE)
