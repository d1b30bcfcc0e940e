"""`cadenza prereg`: write a protocol down, check it, lock it with a git tag, compare."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cadenza.cli.configuration import Settings, explained
from cadenza.cli.output import AsJson, ExitCode, print_json, print_table, print_text, typed_exits
from cadenza.core.errors import ConfigurationError, PreregistrationError

if TYPE_CHECKING:
    from cadenza.evaluation.prereg import (
        LockedRegistration,
        Preregistration,
        PreregistrationSpec,
    )

#: True gaps of the curve of `power`.
_GAPS: Final = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)

_File = Annotated[Path, typer.Argument(help="Registration, a YAML file.")]
Repository = Annotated[
    Path, typer.Option("--repo-root", help="Git repository that holds the registration.")
]


def new(
    config: Annotated[
        Path,
        typer.Argument(help="Evaluation: YAML file or shipped name; or a spike's axis, e.g. CM."),
    ],
    tag: Annotated[str, typer.Option("--tag", help="Git tag that will lock it.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write.")],
    rules: Annotated[
        str, typer.Option("--rules", help="What is concluded from which outcome.")
    ] = "",
    weights_later: Annotated[
        bool, typer.Option("--weights-later", help="Policies are trained after the registration.")
    ] = False,
    settings: Settings = None,
) -> None:
    """Write down what `cadenza eval run` will do with a configuration, or a spike with an axis."""
    with typed_exits():
        from cadenza.benchmark.cells import PolicyChoice, PolicyEntry
        from cadenza.benchmark.evaluation_run import (
            EvaluationConfig,
            load_evaluation_config,
            make_plan,
            summary_settings,
        )
        from cadenza.benchmark.registration import EVALUATION_BLOCK, registered_block
        from cadenza.core.shipped_configs import find_config
        from cadenza.evaluation.prereg import CANONICAL_AXIS_ORDER, PreregDocument

        if out.exists():
            raise ConfigurationError(f"{out}: expected no such file yet, got one; name another.")
        if str(config) in CANONICAL_AXIS_ORDER:
            _write(out, _axis_form(str(config), tag, settings or []), f"axis {config}")
            return
        config = find_config(config, "eval")
        evaluation = explained(
            config, EvaluationConfig, lambda: load_evaluation_config(config, settings or [])
        )
        egos = evaluation.policies
        if weights_later:
            evaluation = evaluation.model_copy(
                update={"policies": (PolicyChoice(name="any", source="zero"),)}
            )
        plan = make_plan(evaluation)
        if weights_later:
            entries = tuple(PolicyEntry(**ego.model_dump()) for ego in egos)
            plan = plan.model_copy(update={"policies": entries})
        block = registered_block(plan, summary_settings(evaluation))
        document = PreregDocument(
            task_id=plan.env.task,
            git_tag=tag,
            parameters={EVALUATION_BLOCK: block},
            decision_rules=rules,
        )
        _write(out, document, f"{plan.n_episodes} episodes, {len(plan.cells)} cells")


def _write(out: Path, protocol: "Preregistration", told: str) -> None:
    """Write a registration and tell about it."""
    import yaml

    from cadenza.core.files import atomic_write_text

    content = protocol.model_dump(mode="json", exclude_defaults=True)
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=100)
    atomic_write_text(out, text)
    print_text(f"{out}: {told}; not locked yet")


def _axis_form(axis: str, tag: str, settings: list[str]) -> "PreregistrationSpec":
    """Return the registration of an axis; settings: ``task``, ``seeds``, ``episodes_per_seed``."""
    from cadenza.benchmark.spike_axes import ESTIMATORS, find_adapter
    from cadenza.benchmark.spikes.runs import EPISODES_PER_SEED, SEEDS
    from cadenza.core.key_values import apply_settings
    from cadenza.evaluation.prereg import PreregistrationSpec

    given = apply_settings({}, settings)
    adapter = find_adapter(axis, task=given.pop("task", None))
    design = {"seeds": list(SEEDS), "episodes_per_seed": EPISODES_PER_SEED, **given}
    fixed = {"axis": axis, "condition_pair": adapter.pair, "estimator": ESTIMATORS[0]}
    notes = f"{adapter.task}: {adapter.varied}."
    return PreregistrationSpec.model_validate({**fixed, **design, "git_tag": tag, "notes": notes})


def lint(file: _File, as_json: AsJson = False) -> None:
    """Check a registration: its shape, and what a reviewer would miss."""
    with typed_exits(as_json=as_json):
        found = _gaps(read_protocol(file))
        if as_json:
            print_json({"ok": not found, "problems": found})
        else:
            print_text("\n".join(found) if found else f"{file}: nothing to add")
    if found:
        raise typer.Exit(ExitCode.CHECK_FAILED)


def power(
    file: _File,
    rate: Annotated[
        float, typer.Option("--rate", min=0.0, max=1.0, help="Success of the reference.")
    ] = 0.5,
    seed_sd: Annotated[
        float, typer.Option("--seed-sd", min=0.0, max=0.5, help="Spread of rates between seeds.")
    ] = 0.1,
    target: Annotated[
        float, typer.Option("--target", min=0.01, max=0.99, help="Power that is wanted.")
    ] = 0.8,
    as_json: AsJson = False,
) -> None:
    """Simulate the registered design: which difference of two rates it can show."""
    with typed_exits(as_json=as_json):
        from cadenza.core.seeding import derive_substream
        from cadenza.evaluation.statistics.power import Rule, World, power_curve, smallest_gap

        seeds, episodes, gate = _design(read_protocol(file))
        rule = Rule(seeds=seeds, episodes=episodes, gate=gate)
        world = World(rate=rate, gap=0.0, seed_sd=seed_sd)
        gaps = [round(gap, 2) for gap in _GAPS if gap <= 1.0 - rate]
        rng = derive_substream("prereg.power").default_rng()
        curve = power_curve(rule, world, gaps, rng=rng)
        smallest = smallest_gap(rule, world, rng=rng, target=target)
        points = list(zip(gaps, curve, strict=True))
        if as_json:
            shape = {"seeds": seeds, "episodes": episodes, "gate": gate, "target": target}
            print_json({**shape, "power": points, "smallest_gap": smallest})
            return
        rows = [(f"{100 * gap:.0f} points", f"{shown:.0%}") for gap, shown in points]
        found = "none" if smallest is None else f"{100 * smallest:.0f} points"
        print_text(f"{seeds} seeds of {episodes} pairs; shown: a gap above {100 * gate:.0f} points")
        print_table("power", ("true gap", "shown in"), rows)
        print_text(f"smallest gap that is shown in {target:.0%}: {found}")


def _design(protocol: "Preregistration") -> tuple[int, int, float]:
    """Return seeds, pairs of each seed and the gap that counts as none, of a registration."""
    from cadenza.evaluation.leaderboard import GATE_PP
    from cadenza.evaluation.prereg import PreregDocument

    if not isinstance(protocol, PreregDocument):
        return len(protocol.seeds), protocol.episodes_per_seed, GATE_PP / 100.0
    block = protocol.parameters.get("evaluation")
    if _gaps(protocol) or block is None:
        raise ConfigurationError(" ".join(_gaps(protocol)) or "power: expected an evaluation.")
    return len(block["seeds"]), block["episodes_per_seed"] * len(block["partners"]), 0.0


def freeze(file: _File, repository: Repository = Path(), as_json: AsJson = False) -> None:
    """Lock a committed registration with its annotated git tag."""
    with typed_exits(as_json=as_json):
        from cadenza.evaluation.prereg import freeze_registration

        protocol = read_protocol(file)
        found = _gaps(protocol)
        if found:
            raise PreregistrationError(" ".join(found))
        locked = freeze_registration(protocol, file.absolute(), repo_path=repository)
        if as_json:
            print_json({"tag": locked.git_tag, "path": locked.path, "blob": locked.blob_sha})
        else:
            print_text(f"{file}: locked by tag {locked.git_tag}, blob {locked.blob_sha}")


def verify(
    files: Annotated[list[Path], typer.Argument(help="Registrations, YAML files.")],
    repository: Repository = Path(),
    as_json: AsJson = False,
) -> None:
    """Compare registrations with their git tags; each is told, whatever the others are."""
    with typed_exits(as_json=as_json):
        report_registrations([verified(file, repository) for file in files], as_json=as_json)


def verified(file: Path, repository: Path) -> dict[str, Any]:
    """Return one row: whether the tag of ``file`` locks it, and its axis, if it registers one."""
    row: dict[str, Any] = {"file": str(file), "axis": None, "ok": False}
    try:
        found = read_registration(file, repository)
    except (ConfigurationError, PreregistrationError) as error:
        return {**row, "detail": str(error)}
    axis = getattr(found.protocol, "axis", None)
    return {
        **row,
        "axis": axis,
        "ok": True,
        "detail": f"tag {found.git_tag}, blob {found.blob_sha}",
    }


def report_registrations(rows: list[dict[str, Any]], *, as_json: bool) -> None:
    """Print all rows; exit with the code of a mismatch unless every one holds."""
    ok = all(row["ok"] for row in rows)
    if as_json:
        print_json({"ok": ok, "registrations": rows})
    else:
        lines = (f"{'PASS' if r['ok'] else 'FAIL'}  {r['file']}  {r['detail']}" for r in rows)
        print_text("\n".join(lines))
    if not ok:
        raise typer.Exit(ExitCode.PREREG_MISMATCH)


def read_protocol(file: Path) -> "Preregistration":
    """Return what a file registers.

    Raises:
        ConfigurationError: It is no registration.
    """
    from pydantic import ValidationError

    from cadenza.evaluation.prereg import PreregDocument, parse_prereg
    from cadenza.loop.validation import problems

    try:
        return parse_prereg(file.read_bytes(), source=str(file))
    except ValidationError as error:
        raise ConfigurationError(f"{file}: {' '.join(problems(error, PreregDocument))}") from error


def read_registration(file: Path, repository: Path) -> "LockedRegistration":
    """Return the registration that its tag locks.

    Raises:
        ConfigurationError: The file is no registration.
        PreregistrationError: The tag does not hold it.
    """
    from cadenza.evaluation.prereg import locked_registration

    return locked_registration(read_protocol(file).git_tag, file.absolute(), repo_path=repository)


def _gaps(protocol: "Preregistration") -> list[str]:
    """Return what a registration leaves open that decides results."""
    from cadenza.benchmark.registration import EVALUATION_BLOCK, block_problems
    from cadenza.evaluation.prereg import PreregDocument

    if not isinstance(protocol, PreregDocument):
        return []
    found = block_problems(protocol) if EVALUATION_BLOCK in protocol.parameters else []
    if not protocol.decision_rules.strip():
        found.append("decision_rules: expected what is concluded from which outcome, got nothing.")
    if not protocol.parameters:
        found.append("parameters: expected at least one block, got none; nothing is registered.")
    return found
