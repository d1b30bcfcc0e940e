"""`cadenza partners`, `configs`, `contracts` and `tasks`: what there is, and what it says."""

from collections.abc import Mapping
from dataclasses import asdict
from itertools import takewhile
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated

import typer

from cadenza.cli.output import (
    AsJson,
    ExitCode,
    Quiet,
    print_json,
    print_table,
    print_text,
    typed_exits,
)
from cadenza.cli.prereg import Repository, read_registration

if TYPE_CHECKING:
    from cadenza.core.contracts import AnyField
    from cadenza.learn.agents.presets import Preset

_Name = Annotated[str, typer.Argument(help="Its name, e.g. train/crossing.", show_default=False)]


def partners(
    task: Annotated[str | None, typer.Option("--task", "-t", help="Task they can play.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the registered partners by task, and what each of them does."""
    with typed_exits(as_json=as_json):
        from cadenza.benchmark.tasks import get_task
        from cadenza.partners.registry import cards

        known = cards()
        if task is not None:
            asked = get_task(task)
            plays = {"", asked.task_id}
            known = {
                name: card
                for name, card in known.items()
                if name in asked.partners or plays & set(card.tasks or [""])
            }
        if as_json:
            print_json(
                {
                    "partners": [
                        {
                            "name": name,
                            "summary": card.summary,
                            "tasks": list(card.tasks),
                            "leaves_way": card.leaves_way,
                        }
                        for name, card in known.items()
                    ]
                }
            )
            return
        groups: dict[str, list[tuple[str, str, str]]] = {}
        for name, card in sorted(
            known.items(), key=lambda item: (not item[1].tasks, item[1].tasks)
        ):
            row = (name, "yes" if card.leaves_way else "no", card.summary)
            groups.setdefault(", ".join(card.tasks) or "any task", []).append(row)
        for title, rows in groups.items():
            print_table(f"Partners on {title}", ("name", "leaves a way", "what it does"), rows)


def tasks(as_json: AsJson = False) -> None:
    """List the registered tasks."""
    with typed_exits(as_json=as_json):
        from cadenza.benchmark.tasks import list_tasks

        known = list_tasks()
        if as_json:
            print_json({"tasks": [task.model_dump(mode="json") for task in known]})
            return
        rows = [
            (
                f"{task.task_id}@v{task.version}",
                task.title,
                str(task.episode_length),
                task.extra or "none",
            )
            for task in known
        ]
        print_table("Tasks", ("name", "what it asks", "steps", "extra"), rows)


def show_task(
    task: Annotated[
        str | None, typer.Argument(help="Its name; default: all tasks.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print a task's card in Markdown: robots, sizes, score, partners and options."""
    with typed_exits(as_json=as_json):
        from cadenza.benchmark.task_cards import task_card
        from cadenza.benchmark.tasks import get_task, list_tasks

        known = list_tasks() if task is None else [get_task(task)]
        if as_json:
            print_json({"tasks": [spec.model_dump(mode="json") for spec in known]})
            return
        title = [] if task else ["# Task cards"]
        print_text("\n\n".join([*title, *map(task_card, known)]))


def contracts(as_json: AsJson = False) -> None:
    """List the tasks that say what each of their numbers means."""
    with typed_exits(as_json=as_json):
        known = _contracts()
        found = [known.get(task_id) for task_id in known.list_contracts()]
        if as_json:
            print_json({"contracts": [each.facts() for each in found]})
            return
        rows = [
            (
                each.title,
                f"{each.obs_dim} -> {each.action_dim}",
                _rate(each.control_hz),
                ", ".join(field.name for field in each.action_spec),
            )
            for each in found
        ]
        print_table("Task contracts", ("name", "numbers", "rate", "actions"), rows)


def show_contract(
    task: Annotated[str, typer.Argument(help="Its name, e.g. crossing.", show_default=False)],
    version: Annotated[
        int | None, typer.Option("--version", min=1, help="Default: latest.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what each number of a task's observations and actions means."""
    with typed_exits(as_json=as_json):
        contract = _contracts().get(task, version)
        if as_json:
            print_json({"contract": contract.facts()})
            return
        title, columns = contract.title, ("entries", "name", "unit", "frame", "bounds")
        rows = [
            (*_facts(field, contract.obs_slices()), f"{field.scale:g}")
            for field in contract.obs_spec
        ]
        print_table(f"{title}, {_rate(contract.control_hz)}: observed", (*columns, "1 is"), rows)
        rows = [
            (*_facts(field, contract.action_slices()), _range(*map(field.to_physical, bounds)))
            for field in contract.action_spec
            for bounds in [(field.low, field.high)]
        ]
        print_table(f"{title}: done", (*columns, "physical"), rows, note=contract.notes)


def _contracts() -> ModuleType:
    """Return the registry of contracts, with those of tasks that plug-ins register."""
    from cadenza import contracts as known
    from cadenza.benchmark.tasks import list_tasks

    list_tasks()
    return known


def _rate(hz: float | None) -> str:
    return "by turns" if hz is None else f"{hz:g} Hz"


def _range(low: float, high: float) -> str:
    return f"{low:g} ... {high:g}"


def _facts(field: "AnyField", places: Mapping[str, slice]) -> tuple[str, ...]:
    """Return entries, name, unit, frame and bounds of a field."""
    first, end = places[field.name].start, places[field.name].stop
    place = str(first) if end - first == 1 else f"{first}:{end}"
    return place, field.name, field.unit, field.frame, _range(field.low, field.high)


def configs(as_json: AsJson = False) -> None:
    """List the shipped configurations, and the settings that agents were measured with.

    Commands take their own configurations without the folder's name. In Python
    `cadenza.SAC.preset("Pendulum-v1")` returns settings as keywords of `cadenza.SAC`.
    """
    with typed_exits(as_json=as_json):
        from cadenza.core.shipped_configs import shipped_config, shipped_configs
        from cadenza.learn.agents.presets import presets

        known, measured = shipped_configs(), presets().values()
        if as_json:
            rows = [{**asdict(each), "command": each.command} for each in measured]
            print_json({"configs": known, "presets": rows})
            return
        rows = [(name, _comment(shipped_config(name))) for name in known]
        print_table("Configurations", ("name", "what it is"), rows)
        columns = ("settings", "score", "seeds", "python perf/scores.py ...")
        note = "score: mean return and its 95 % interval, over seeds, or episodes of a single one"
        rows = [_preset_row(each) for each in measured]
        print_table("Presets", columns, rows, note=note)


def show_config(name: _Name) -> None:
    """Print a shipped configuration."""
    with typed_exits():
        from cadenza.core.shipped_configs import shipped_config

        print_text(shipped_config(name).read_text("utf-8").rstrip("\n"))


def copy_config(
    name: _Name,
    target: Annotated[
        Path | None,
        typer.Argument(help="New file; default: configs/NAME.yaml.", show_default=False),
    ] = None,
) -> None:
    """Copy a shipped configuration to a file of your own; commands prefer it to the shipped one."""
    with typed_exits():
        from cadenza.core.files import atomic_write_bytes, make_folder
        from cadenza.core.shipped_configs import configs_folder, shipped_config

        source = shipped_config(name)
        path = target or "configs" / source.relative_to(configs_folder())
        if path.exists():
            raise FileExistsError(f"{path}: expected no such file yet, got one; name another.")
        make_folder(path.parent)
        atomic_write_bytes(path, source.read_bytes())
        print_text(f"copied to {path}")


def _preset_row(preset: "Preset") -> tuple[str, ...]:
    """Return what a preset is called in Python, its score, seeds and command."""
    name = f'{preset.algorithm}.preset("{preset.env}")'
    if preset.reward_scale != 1.0:  # settings alone would not repeat it
        name = f"{preset.algorithm}, {preset.env}, rewards x {preset.reward_scale}"
    mean, *ends = (f"{value:.1f}" for value in preset.score)
    score = f"{mean} [{', '.join(ends)}]" if ends else mean
    return name, score, str(preset.seeds), preset.command.removeprefix("python perf/scores.py ")


def _comment(path: Path) -> str:
    """Return the comment that a file begins with."""
    lines = path.read_text("utf-8").splitlines()
    return " ".join(line.lstrip("# ") for line in takewhile(lambda line: line[:1] == "#", lines))


_Task = Annotated[str, typer.Argument(help="Its name, e.g. cocarry_mj.", show_default=False)]


def admit(
    task: _Task,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the record.")],
    episodes: Annotated[
        int | None, typer.Option("--episodes", min=2, help="Episodes in each row, at most.")
    ] = None,
    prereg: Annotated[
        Path | None, typer.Option("--prereg", help="Registration of the checks' limits.")
    ] = None,
    repository: Repository = Path(),
    quiet: Quiet = False,
) -> None:
    """Check that a task needs a partner and an ego that feels it, and write the table.

    Ends with code 1 if a check fails.
    """
    with typed_exits():
        from cadenza.benchmark.admission import THRESHOLDS, as_markdown
        from cadenza.benchmark.admission import admit as play
        from cadenza.core.files import atomic_write_json, atomic_write_text
        from cadenza.core.progress import progress_bar
        from cadenza.evaluation.admission import thresholds_in

        registration = None if prereg is None else read_registration(prereg, repository)
        limits = THRESHOLDS if registration is None else thresholds_in(registration, task)
        with progress_bar("admission", quiet=quiet) as report:
            record = play(
                task,
                episodes=episodes,
                thresholds=limits,
                evidence_root=repository,
                progress=report,
            )
        if registration is not None:
            lock = {"git_tag": registration.git_tag, "blob_sha": registration.blob_sha}
            record |= {"prereg": lock}
        atomic_write_json(out / "admission.json", record)
        table = as_markdown(record)
        atomic_write_text(out / "admission.md", table)
        print_text(table)
    if not all(check["passed"] for check in record["checks"].values()):
        raise typer.Exit(ExitCode.CHECK_FAILED)


def freeze(
    task: _Task,
    out: Annotated[Path, typer.Option("--out", "-o", help="File for the manifest.")],
) -> None:
    """Measure the limits that a task's reference controller sets, and write its manifest."""
    with typed_exits():
        from cadenza.benchmark.admission import freeze_force_limit
        from cadenza.core.errors import ConfigurationError
        from cadenza.core.files import atomic_write_json

        if task != "cocarry_mj":
            raise ConfigurationError(f"freeze: expected cocarry_mj, got {task!r}.")
        manifest = freeze_force_limit()
        atomic_write_json(out, manifest)
        print_json(manifest)


def film(
    task: _Task,
    out: Annotated[Path, typer.Option("--out", "-o", help="File: .png, .gif, .mp4 or .json.")],
    ego: Annotated[str, typer.Option("--ego", help="Policy: a name or local:// address.")],
    partner: Annotated[str, typer.Option("--partner", help="Registered partner class.")],
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the episode.")] = 0,
    option: Annotated[
        list[str] | None, typer.Option("--option", help="Task setting, e.g. partner_delay=5.")
    ] = None,
) -> None:
    """Play one episode and write pictures of it."""
    with typed_exits():
        from cadenza.benchmark.films import film as make
        from cadenza.core.key_values import apply_settings

        options = apply_settings({}, option or ())
        result = make(out, task=task, ego=ego, partner=partner, seed=seed, options=options)
        print_text(f"{out}: {result['steps']} steps, success {result['info'].get('success')}")
