"""Flags of our own jobs: ``cadenza job collect | train | evaluate | harvest | merge``."""

from typing import Final

from cadenza.loop.constitution.kinds import (
    NAME,
    REPOSITORY,
    Choice,
    FilePath,
    Integer,
    Kind,
    Listing,
    Number,
)
from cadenza.loop.constitution.programs import (
    CollectJob,
    EvalJob,
    HarvestJob,
    MergeJob,
    Program,
    TrainJob,
    each,
)

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
    "out": "output_dir",
    "repo-id": "repo_id",
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
    fields={"policy": "policy", **_COLLECTING_FIELDS, "seed-count": "attempts"},
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
    fields={
        "rung": "rung",
        "dataset": "dataset_root",
        "steps": "steps",
        "batch-size": "batch_size",
        "init": "init",
        "out": "output_dir",
    },
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
    fields={
        "policy": "policy",
        "task": "env_type",
        "seed-start": "seed_start",
        "episodes": "episodes",
        "batch-size": "batch_size",
        "out": "output_dir",
    },
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
    fields={"sources": "sources", "out": "output_dir", "repo-id": "repo_id"},
    required=each("sources", "out", "repo-id", "result-json"),
)

NATIVE_PROGRAMS: Final = (COLLECT, TRAIN, EVALUATE, HARVEST, MERGE)
