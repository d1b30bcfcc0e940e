"""`cadenza safety verify`, `cadenza safety tables` and `cadenza safety show`."""

import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

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
from cadenza.core.errors import ConfigurationError
from cadenza.core.progress import progress_bar

if TYPE_CHECKING:
    from cadenza.safety.verifier.report import (
        AttackReport,
        Counts,
        ScenarioResult,
        VerificationReport,
    )

#: Columns of the scenarios' tables, and of the totals over several partners.
_SCENARIO_COLUMNS: Final = (
    "scenario",
    "episodes",
    "steps",
    "overlaps",
    "at most",
    "unfiltered",
    "infeasible",
    "changed",
    "free / m",
)
_TOTAL_COLUMNS: Final = (
    "partners",
    "episodes",
    "overlaps",
    "rate, 95 % interval",
    "unfiltered",
    "infeasible",
    "uncertified",
    "free / m",
)
_ATTACK_COLUMNS: Final = (
    "scheme",
    "where",
    "episodes",
    "steps",
    "wall",
    "touched in certified steps",
    "own speed",
    "uncertified",
    "touched",
    "goals",
)
_ATTACK_NOTE: Final = (
    "wall: steps in which an obstacle was touched; own speed: the robot's largest speed while it\n"
    "was touched, m/s; touched: episodes with a contact, which nobody can avoid beside walls"
)
#: What to do after a stop.
_START_OVER: Final = "nothing is kept, run the same command again"
_NOTE: Final = (
    "overlaps: episodes in which balls overlapped; at most: exact 95 % bound on their rate;\n"
    "unfiltered: steps that executed an unsafe nominal action; changed: by the filter;\n"
    "infeasible: steps in which no action meets every row; free: smallest free distance"
)


def verify(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CONFIG | KEY=VALUE",
            help="YAML file, or the name of a shipped one, and settings to change.",
            show_default=False,
        ),
    ] = None,
    steps: Annotated[
        int | None, typer.Option("--steps", min=1, help="Adversarial steps with one partner.")
    ] = None,
    partners: Annotated[
        list[int] | None,
        typer.Option("--partners", help="Number of partners; repeat it for several numbers."),
    ] = None,
    plant: Annotated[
        str | None, typer.Option("--plant", help="Simulate zoh or semi_implicit only.")
    ] = None,
    barrier: Annotated[
        str | None, typer.Option("--barrier", help="Constraint of the filter: sampled or wae.")
    ] = None,
    compat: Annotated[
        str | None,
        typer.Option("--compat", help="upstream: the filter as in the original; with wae."),
    ] = None,
    robot: Annotated[
        str | None,
        typer.Option(
            "--robot",
            help="Attack the filter with a backup of a velocity, unicycle or acceleration robot.",
        ),
    ] = None,
    world_map: Annotated[
        Path | None,
        typer.Option("--map", help="Map to attack in, a YAML file or a shipped one; with --robot."),
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Root seed of all draws.")] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for report and picture.")] = Path(
        "runs/verify"
    ),
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Run adversarial partners against the safety filter and count contacts.

    Ends with code 1 unless a single partner never gets in and no unfiltered action is executed;
    with --robot, unless no obstacle is touched, and nobody touches the robot in a certified step.
    """
    options = {
        "steps": steps,
        "partners": partners or None,
        "plants": plant,
        "barrier": barrier,
        "compat": compat,
        "seed": seed,
    }
    with typed_exits(as_json=as_json, go_on=_START_OVER):
        started = time.perf_counter()
        if robot is None and world_map is None:
            report = _run(words or [], options, out, quiet=quiet or as_json)
            show = partial(_print_report, report)
        else:
            options |= {"robot": robot, "map": None if world_map is None else str(world_map)}
            report = _attack(words or [], options, out, quiet=quiet or as_json)
            show = partial(_print_attack, report)
    with typed_exits(go_on=_START_OVER):  # the result is printed whatever becomes of the files
        elapsed_s = time.perf_counter() - started
        _publish(report, out, elapsed_s, show=None if as_json else show)
    if not report.holds:
        raise typer.Exit(ExitCode.CHECK_FAILED)


def tables(
    file: Annotated[Path, typer.Argument(help="A three_tables.json of any version.")],
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
    latex: Annotated[bool, typer.Option("--latex", help="Print LaTeX.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, of the current version.")
    ] = False,
    allow_unhashed: Annotated[
        bool, typer.Option("--allow-unhashed", help="Accept a file without a hash.")
    ] = False,
) -> None:
    """Check a stored three-table safety report and show it; older versions are upgraded."""
    with typed_exits(as_json=as_json):
        from cadenza.safety.reporting.rendering import (
            INTERVAL_NOTE,
            parse_three_tables,
            provenance_lines,
            render_latex,
            render_markdown,
            report_tables,
        )

        if markdown + latex + as_json > 1:
            raise ConfigurationError(
                "safety tables: expected one of --markdown, --latex and --json, got several."
            )
        report = parse_three_tables(file, require_hash=not allow_unhashed)
        if as_json:
            print_json(report.to_document())
        elif markdown or latex:
            print_text((render_latex if latex else render_markdown)(report).rstrip("\n"))
        else:
            for table in report_tables(report):
                print_table(table.title, table.columns, table.rows)
            print_text(INTERVAL_NOTE)
            for name, value in provenance_lines(report.details):
                print_text(f"{name}: {value}")


def show(
    file: Annotated[
        Path, typer.Argument(metavar="MAP", help="YAML file, or the name of a shipped map.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="PNG to write.")] = Path("runs/map.png"),
    radius: Annotated[
        float | None,
        typer.Option("--radius", min=0.0, help="Outline where a robot of this radius fits, m."),
    ] = None,
    height: Annotated[
        float, typer.Option("--height", help="z of the plane drawn of a map in 3-D, m.")
    ] = 0.0,
    as_json: AsJson = False,
) -> None:
    """Check a map of obstacles, list its shapes and draw it."""
    with typed_exits(as_json=as_json):
        from cadenza.core.files import atomic_write_bytes
        from cadenza.core.shipped_configs import find_config
        from cadenza.safety.maps import describe_map, draw_map, fits, load_map

        obstacles = load_map(find_config(file, "maps"))
        atomic_write_bytes(out, draw_map(obstacles, radius_m=radius, height_m=height))
        shapes = describe_map(obstacles)
        if as_json:
            print_json({"obstacles": shapes, "picture": str(out)})
            return
        rows = [
            (str(index), kind, ", ".join(f"{name} {value}" for name, value in values.items()))
            for index, shape in enumerate(shapes)
            for kind, values in shape.items()
        ]
        title = f"{len(obstacles)} obstacle{'' if len(obstacles) == 1 else 's'}"
        print_table(title, ("", "shape", "m, rad"), rows)
        if radius is not None and not fits(obstacles, radius, height_m=height):
            print_text(f"a robot of {radius:g} m radius fits nowhere in the picture")
        print_text(f"picture: {out}")


def _run(
    words: list[str], options: dict[str, Any], out: Path, *, quiet: bool
) -> "VerificationReport":
    """Run the verification that words and options describe; refuse what must fail beforehand."""
    from cadenza.core.extras import load_extra
    from cadenza.core.files import require_writable
    from cadenza.safety.verifier.config import load_verifier_config
    from cadenza.safety.verifier.run import playable_scenarios
    from cadenza.safety.verifier.run import verify as run_verification

    load_extra("scipy.special")  # which the bounds need: missed now, not after two million steps
    config = load_verifier_config(*_parts(words, options))
    playable_scenarios(config)
    require_writable(out)
    with progress_bar("verifying", quiet=quiet) as progress:
        return run_verification(config, progress)


def _parts(
    words: list[str], options: dict[str, Any]
) -> tuple[Path | None, dict[str, Any], list[str]]:
    """Return the file that words name, the options that were given, and the settings."""
    from cadenza.core.shipped_configs import find_config

    named = bool(words) and not words[0].startswith("~") and "=" not in words[0]
    path = find_config(Path(words[0]), "safety") if named else None
    given = {key: value for key, value in options.items() if value is not None}
    return path, given, words[named:]


def _attack(words: list[str], options: dict[str, Any], out: Path, *, quiet: bool) -> "AttackReport":
    """Attack the filter with a backup that words and options describe."""
    from cadenza.core.files import require_writable
    from cadenza.safety.verifier.attacks import attack
    from cadenza.safety.verifier.config import AttackConfig, load_config

    path, given, settings = _parts(words, options)
    if "robot" not in given:
        raise ConfigurationError("safety verify: expected --robot with --map, got none.")
    other = [name for name in ("partners", "plants", "barrier", "compat") if name in given]
    if other:
        raise ConfigurationError(
            f"safety verify: expected none of --partners, --plant, --barrier and --compat with "
            f"--robot, got {', '.join(other)}; its schemes say how many partners there are."
        )
    config = load_config(AttackConfig, path, given, settings)
    require_writable(out)
    with progress_bar("attacking", quiet=quiet) as progress:
        return attack(config, progress)


def _publish(
    report: "VerificationReport | AttackReport",
    out: Path,
    elapsed_s: float,
    *,
    show: Callable[[], None] | None,
) -> None:
    """Print the result, as JSON if there is no ``show``, and store it; no refusal hides it.

    Raises:
        StorageError: The file system refused.
    """
    if show is not None:
        show()
        for failure in report.failures:
            print_text(f"FAILED: {failure}")
        print_text(f"The claim {'holds' if report.holds else 'does NOT hold'} ({elapsed_s:.1f} s).")
        report_path, picture = report.save(out)
        print_text(f"report: {report_path}\nworst episode: {picture}")
        return
    files: dict[str, str | None] = {"report": None, "picture": None}
    try:
        report_path, picture = report.save(out)
        files = {"report": str(report_path), "picture": str(picture)}
    finally:
        print_json({**report.to_jsonable(), **files, "elapsed_s": round(elapsed_s, 3)})


def _print_report(report: "VerificationReport") -> None:
    """Print the scenarios, the totals and the verdict, which comes last."""
    single = [r for r in report.results if r.partners == 1 and r.kind == "adversarial"]
    several = [r for r in report.results if r.partners > 1]
    standing = [r for r in report.results if r.kind == "stationary"]
    for title, results in (
        ("One adversarial partner", single),
        ("Several adversarial partners", several),
        ("One partner that stands still, 8 m ahead", standing),
    ):
        if results:
            print_table(title, _SCENARIO_COLUMNS, [_scenario_cells(r) for r in results])
    print_text(f"{_NOTE}\n")
    if several:
        counts = [(str(n), report.several(n)) for n in report.config.partners if n > 1]
        rows = [_total_cells(name, entry) for name, entry in counts]
        print_table("Several partners: rates, no guarantee", _TOTAL_COLUMNS, rows)
        if report.config.multi_partner == "passive":
            fastest, tolerated = report.several().largest_contact_speed, report.config.contact_speed
            print_text(f"Own speed in a contact: {fastest:.3g} m/s, tolerated {tolerated:g} m/s\n")
    for name, entry in (
        ("One adversarial partner", report.single_adversarial()),
        ("One standing partner", report.stationary()),
    ):
        if entry.episodes:
            print_text(_paragraph(name, entry))
    everything = report.everything()
    print_text(
        f"Repeated through the filter of one environment: {everything.compared_steps} steps, "
        f"largest difference {everything.largest_difference:.1e} m/s²\n"
    )


def _print_attack(report: "AttackReport") -> None:
    """Print one row per scheme, in free space and among obstacles."""
    rows = [
        (
            scheme,
            where,
            str(counts.episodes),
            str(counts.steps),
            str(counts.wall_contacts),
            str(counts.certified_contacts) if claim == "escape" else "-",
            f"{counts.largest_contact_speed:.1g}" if claim == "passive" else "-",
            f"{counts.uncertified / counts.steps:.1%}",
            f"{counts.touched_episodes} of {counts.episodes}" if claim != "walls" else "-",
            str(counts.goals),
        )
        for scheme, parts in report.totals().items()
        for where, counts in parts.items()
        for claim in (scheme.rpartition("-")[2],)
    ]
    print_table(f"Attacks on robots: {report.config.robot}", _ATTACK_COLUMNS, rows)
    print_text(f"{_ATTACK_NOTE}\n")


def _scenario_cells(result: "ScenarioResult") -> tuple[str, ...]:
    counts = result.counts
    partners = f"{result.partners}p " if result.partners > 1 else ""
    age = "" if result.delay == "none" else f" {result.delay} age"
    plant = result.plant.removesuffix("_implicit")
    return (
        f"{partners}{result.dim}-D {plant} {result.dt:g} s{age}",
        str(counts.episodes),
        str(counts.steps),
        str(counts.penetrated_episodes),
        f"{counts.episode_interval()[1]:.2%}",
        str(counts.unfiltered_steps),
        str(counts.infeasible_steps),
        f"{counts.share(counts.changed_steps):.0%}",
        f"{counts.min_margin_m:.0e}",
    )


def _total_cells(name: str, counts: "Counts") -> tuple[str, ...]:
    low, high = counts.episode_interval()
    return (
        name,
        str(counts.episodes),
        str(counts.penetrated_episodes),
        f"{counts.penetrated_episodes / counts.episodes:.2%} ({low:.2%} - {high:.2%})",
        str(counts.unfiltered_steps),
        f"{counts.share(counts.infeasible_steps):.2%}",
        f"{counts.share(counts.uncertified_steps):.2%}",
        f"{counts.min_margin_m:.0e}",
    )


def _paragraph(name: str, counts: "Counts") -> str:
    """Return a few lines on a group of scenarios."""
    low, high = counts.episode_interval()
    episodes = f"{low:.3%} to {high:.3%}" if counts.penetrated_episodes else f"at most {high:.3%}"
    safe_set = "not judged"
    if counts.min_barrier < math.inf:
        safe_set = f"{counts.exited_steps} steps, barrier at least {counts.min_barrier:.1e} m/s"
    overlap_bound = counts.step_bound(counts.penetrated_steps)
    unfiltered_bound = counts.step_bound(counts.unfiltered_steps)
    return (
        f"{name}: {counts.steps} steps in {counts.episodes} episodes\n"
        f"  overlaps            {counts.penetrated_episodes} episodes, "
        f"{counts.penetrated_steps} steps; 95 %: {episodes} of the episodes, at most "
        f"{overlap_bound:.1e} of the steps\n"
        f"  unfiltered actions  {counts.unfiltered_steps}; 95 %: at most {unfiltered_bound:.1e} of "
        "the steps\n"
        f"  missed rows         {counts.missed_steps}\n"
        f"  left the safe set   {safe_set}\n"
        f"  infeasible steps    {counts.infeasible_steps}\n"
        f"  uncertified steps   {counts.uncertified_steps}\n"
        f"  changed actions     {counts.share(counts.changed_steps):.1%} of the steps\n"
        f"  free distance       at least {counts.min_margin_m:.2g} m "
        f"(centres {counts.min_distance_m:.3g} m)"
    )
