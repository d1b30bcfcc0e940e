"""`cadenza job collect | train | evaluate | harvest | merge`: the steps of an improvement loop.

Equal flags give equal bytes. A job that was killed goes on when the same command runs again.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

import typer

from cadenza.cli.output import print_text, typed_exits
from cadenza.core.errors import ConfigurationError
from cadenza.core.extras import load_extra
from cadenza.core.progress import LINE_EVERY_S

_GO_ON: Final = "finished work is kept, run the same command again to continue"

# Options of several jobs; those of one job stand in its command.
_Out: TypeAlias = Annotated[Path, typer.Option("--out", help="Folder of the job, new or begun.")]
_Result: TypeAlias = Annotated[
    Path, typer.Option("--result-json", help="Result file, written last and atomically.")
]
_Task: TypeAlias = Annotated[str, typer.Option("--task", help="See `cadenza tasks list`.")]
_Partners: TypeAlias = Annotated[
    str,
    typer.Option("--partners", help="Classes, separated by commas; or default, or leaving_way."),
]
_Focus: TypeAlias = Annotated[
    str, typer.Option("--focus", help="Partners with a triple share, separated by commas.")
]
_Filter: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--filter", help="Safety filter: on or off; on by default where the task has one."
    ),
]
_SeedStart: TypeAlias = Annotated[
    int, typer.Option("--seed-start", help="Seed of the first initial state.")
]
_SeedCount: TypeAlias = Annotated[int, typer.Option("--seed-count", help="Attempts, at most.")]
_Wanted: TypeAlias = Annotated[int, typer.Option("--episodes", help="Successful episodes wanted.")]
_RepoId: TypeAlias = Annotated[str, typer.Option("--repo-id", help="Name of the dataset.")]
_Policy: TypeAlias = Annotated[
    Path, typer.Option("--policy", help="Checkpoint that a training wrote.")
]


def collect(
    task: _Task,
    episodes: _Wanted,
    seed_start: _SeedStart,
    seed_count: _SeedCount,
    out: _Out,
    repo_id: _RepoId,
    result_json: _Result,
    partners: _Partners = "default",
    focus: _Focus = "",
    expert: Annotated[
        str | None, typer.Option("--expert", help="Scripted ego; the task's first by default.")
    ] = None,
) -> None:
    """Collect successful episodes of a scripted expert."""
    with typed_exits(go_on=_GO_ON):
        from cadenza.benchmark.jobs import collecting

        load_extra("pyarrow")  # which writes the episodes: missed now, not after they were played
        collection = collecting.Collection(
            task=task,
            partners=_names(partners),
            focus=_names(focus),
            episodes=episodes,
            seed_start=seed_start,
            seed_count=seed_count,
            repo_id=repo_id,
            out=out,
            result=result_json,
            report=_lines("collecting"),
        )
        _show_collected(collecting.collect(collection, expert=expert), result_json)


def harvest(
    policy: _Policy,
    task: _Task,
    episodes: _Wanted,
    seed_start: _SeedStart,
    seed_count: _SeedCount,
    out: _Out,
    repo_id: _RepoId,
    result_json: _Result,
    partners: _Partners = "default",
    focus: _Focus = "",
    filter_: _Filter = None,
    starts: Annotated[
        str,
        typer.Option(help="solved, or failed: the expert's episodes where the policy failed."),
    ] = "solved",
) -> None:
    """Collect a policy's own successful episodes; finding none is a valid result."""
    with typed_exits(go_on=_GO_ON):
        from cadenza.benchmark.jobs import collecting

        load_extra("pyarrow")  # which writes the episodes: missed now, not after they were played
        collection = collecting.Collection(
            task=task,
            partners=_names(partners),
            focus=_names(focus),
            episodes=episodes,
            seed_start=seed_start,
            seed_count=seed_count,
            repo_id=repo_id,
            out=out,
            result=result_json,
            report=_lines("collecting"),
        )
        result = collecting.harvest(collection, policy=policy, filtered=filter_, starts=starts)
        _show_collected(result, result_json)


def train(
    rung: Annotated[str, typer.Option("--rung", help="Policy type: bc or bc_large.")],
    dataset: Annotated[Path, typer.Option("--dataset", help="Folder of a LeRobotDataset v3.0.")],
    steps: Annotated[int, typer.Option("--steps", help="Updates.")],
    batch_size: Annotated[int, typer.Option("--batch-size", help="Samples per update.")],
    seed: Annotated[int, typer.Option("--seed", help="Seed of weights and batches.")],
    out: _Out,
    result_json: _Result,
    episodes: Annotated[
        str, typer.Option("--episodes", help="Numbers of the episodes that count; all if empty.")
    ] = "",
    first_episodes: Annotated[
        int | None,
        typer.Option("--first-episodes", help="Or how many episodes count, from the first."),
    ] = None,
    mix: Annotated[Path | None, typer.Option("--mix", help="Second dataset to mix in.")] = None,
    mix_ratio: Annotated[
        float, typer.Option("--mix-ratio", help="Share of samples from the second dataset.")
    ] = 0.5,
    max_epochs: Annotated[
        float | None, typer.Option("--max-epochs", help="Passes over either dataset, at most.")
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option("--learning-rate", help="Step size at the first update.")
    ] = None,
    init: Annotated[
        Path | None, typer.Option("--init", help="Checkpoint of the same rung to start from.")
    ] = None,
) -> None:
    """Clone the behaviour that a dataset shows."""
    with typed_exits(go_on=_GO_ON):
        from cadenza.benchmark.jobs import cloning

        result = cloning.train(
            cloning.Training(
                rung=rung,
                dataset=dataset,
                episodes=_numbers("--episodes", episodes),
                first_episodes=first_episodes,
                mix=mix,
                mix_ratio=mix_ratio,
                steps=steps,
                batch_size=batch_size,
                max_epochs=max_epochs,
                learning_rate=learning_rate,
                init=init,
                seed=seed,
                out=out,
                result=result_json,
                report=_lines("training"),
            )
        )
        print_text(
            f"{result['updates']} updates on {result['frames']} steps, squared error "
            f"{result['loss']:.4g}: {result_json}"
        )


def evaluate(
    policy: _Policy,
    task: _Task,
    seed_start: _SeedStart,
    episodes: Annotated[int, typer.Option("--episodes", help="Episodes, one seed each.")],
    out: _Out,
    result_json: _Result,
    partners: _Partners = "default",
    filter_: _Filter = None,
    batch_size: Annotated[
        int, typer.Option("--batch-size", help="Episodes between two saves.")
    ] = 16,
) -> None:
    """Measure a policy from given initial states."""
    with typed_exits(go_on=_GO_ON):
        from cadenza.benchmark.jobs import encounters

        result = encounters.evaluate(
            encounters.Evaluation(
                policy=policy,
                task=task,
                partners=_names(partners),
                filtered=filter_,
                seed_start=seed_start,
                episodes=episodes,
                batch_size=batch_size,
                out=out,
                result=result_json,
                report=_lines("evaluating"),
            )
        )
        overall = result["overall"]
        print_text(
            f"success {overall['success_rate']:.1%} of {overall['n_episodes']} episodes: "
            f"{result_json}"
        )


def merge(
    sources: Annotated[
        str, typer.Option("--sources", help="Folders of datasets, separated by commas.")
    ],
    out: _Out,
    repo_id: _RepoId,
    result_json: _Result,
) -> None:
    """Join datasets of equal features."""
    with typed_exits(go_on=_GO_ON):
        from cadenza.benchmark.jobs import dataset_files

        paths = tuple(Path(name) for name in _names(sources))
        job = dataset_files.Merge(sources=paths, repo_id=repo_id, out=out, result=result_json)
        result = dataset_files.merge(job)
        print_text(f"{result['dataset']['episodes']} episodes: {result_json}")


def _lines(label: str) -> Callable[[int, int], None]:
    """Return what tells on stderr how far a job has come, at most every `LINE_EVERY_S`.

    While nothing is done nothing is told: to a loop, a job that leaves no trace hangs.
    """
    told = began = time.monotonic()

    def report(done: int, wanted: int) -> None:
        nonlocal told
        now = time.monotonic()
        if now - told >= LINE_EVERY_S:
            told = now
            sys.stderr.write(f"{label}: {done} of {wanted} ({now - began:.0f} s)\n")
            sys.stderr.flush()

    return report


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(",")) if text else ()


def _numbers(flag: str, text: str) -> tuple[int, ...]:
    parts = _names(text)
    for part in parts:
        if not (part.isascii() and part.isdigit()):
            raise ConfigurationError(
                f"{flag}: expected numbers with commas between them, got {text!r}."
            )
    return tuple(int(part) for part in parts)


def _show_collected(result: dict[str, Any], path: Path) -> None:
    print_text(f"kept {result['kept']} episodes of {result['attempts']} attempts: {path}")
