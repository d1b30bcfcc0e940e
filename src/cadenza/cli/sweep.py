"""`cadenza sweep`: search the settings of an ego training."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from cadenza.cli.configuration import Zoos, read_training_config, training_file
from cadenza.cli.evaluate import Executor, Resources, Workers, cluster_of
from cadenza.cli.output import AsJson, Quiet, print_json, print_table, print_text, typed_exits
from cadenza.core.errors import ConfigurationError, refuse
from cadenza.core.progress import stage_bars

if TYPE_CHECKING:
    from cadenza.benchmark.sweep import SweepConfig

#: Trials in the table for people, the best first.
_SHOWN = 10


def sweep(
    config: Annotated[
        Path, typer.Argument(help="YAML file, or the name of a shipped training, e.g. crossing.")
    ],
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=RANGE",
            help="1e-5..1e-2, log:1e-5..1e-2, 1..8 or a,b,c; other values are settings of all.",
            show_default=False,
        ),
    ] = None,
    zoo: Zoos = None,
    trials: Annotated[int, typer.Option("--trials", "-n", min=1, help="Trials in all.")] = 20,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder; runs/sweep-ALGORITHM by default.")
    ] = None,
    seeds: Annotated[
        str | None, typer.Option("--seeds", help="Training seeds of each trial: 3, 0-2 or 3,7.")
    ] = None,
    sampler: Annotated[str, typer.Option("--sampler", help="tpe or random.")] = "tpe",
    pruner: Annotated[str, typer.Option("--pruner", help="median or none.")] = "median",
    batch: Annotated[
        int, typer.Option("--batch", min=1, help="Trials that are proposed together.")
    ] = 4,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Root of the draws.")] = 0,
    workers: Workers = None,
    executor: Executor = "local",
    resources: Resources = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the sweep there, also with more trials.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Delete the sweep there.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Search settings: train trial after trial, the next ones where it went well.

    Trials are compared on validation seeds beside partners of the training, or those of
    evaluation.validation, never beside held-out ones. The same seed and batch give the same
    trials, whatever the workers.
    """
    with typed_exits(as_json=as_json):
        from cadenza.benchmark.output_folder import output_mode
        from cadenza.benchmark.sweep import SweepRunner
        from cadenza.benchmark.sweep_report import sweep_record, trial_table, write_sweep_report

        asked = _asked(
            config,
            settings or [],
            zoo or (),
            seeds=seeds,
            sampler=sampler,
            pruner=pruner,
            batch=batch,
            seed=seed,
        )
        folder = out or Path("runs") / f"sweep-{asked.training.algo}"
        with stage_bars(quiet=quiet or as_json) as report:
            found = SweepRunner(
                out=folder,
                workers=workers,
                cluster=cluster_of(executor, resources or []),
                progress=report,
            ).run(asked, trials, mode=output_mode(resume=resume, overwrite=overwrite))
        page, best = write_sweep_report(found), found.out / "best.yaml"
        if as_json:
            print_json({**sweep_record(found), "settings": str(best), "report": str(page)})
            return
        table = trial_table(found, most=_SHOWN)
        print_table(table.title, table.columns, table.rows, note=table.caption)
        print_text(f"best settings: {best} (cadenza train {shlex.quote(str(best))} --seeds 5)")
        print_text(f"report: {page}")


def _asked(
    path: Path, words: Sequence[str], zoos: Sequence[Path], *, seeds: str | None, **how: Any
) -> "SweepConfig":
    """Return what the command line and the file's section ``sweep`` ask for."""
    from cadenza.aht.config import SWEEP_SECTION, read_settings
    from cadenza.benchmark.sweep import SweepConfig, section_ranges, split_ranges
    from cadenza.benchmark.training_seeds import parse_seeds
    from cadenza.cli.configuration import explained

    changes, ranges = split_ranges(words)
    training = read_training_config(path, changes, zoos)
    file, changes = training_file(path, changes)
    section: Any = read_settings(config_path=file, overrides=changes).get(SWEEP_SECTION, {})
    if not isinstance(section, dict):
        refuse(ConfigurationError, "sweep", expected="a mapping of ranges", got=section)
    space = section_ranges(cast("dict[str, Any]", section)) | ranges
    if not space:
        refuse(
            ConfigurationError,
            "sweep",
            expected="KEY=RANGE or a section `sweep` in the file",
            got="none",
            do="name a setting, e.g. ppo.learning_rate=log:1e-4..1e-2",
        )

    def read() -> SweepConfig:
        return SweepConfig(
            training=training,
            space=space,
            seeds=(training.seed,) if seeds is None else parse_seeds(seeds),
            **how,
        )

    return explained(Path("sweep"), SweepConfig, read)
