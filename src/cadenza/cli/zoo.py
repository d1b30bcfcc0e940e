"""`cadenza zoo train | list | show | select | best-response | matrix | film`, and the draft zoo."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cadenza.cli.configuration import Settings, explained
from cadenza.cli.evaluate import Executor, Resources, Workers, cluster_of
from cadenza.cli.output import AsJson, Quiet, print_json, print_table, print_text, typed_exits
from cadenza.core.progress import progress_bar, stage_bars

if TYPE_CHECKING:
    from cadenza.benchmark.zoo.config import ZooConfig
    from cadenza.benchmark.zoo.responses import TrainedResponse
    from cadenza.partners.selection import Criterion
    from cadenza.partners.zoo_manifest import Skill, ZooManifest, ZooMember

_Resume = Annotated[bool, typer.Option("--resume", help="Continue what is there.")]
_Overwrite = Annotated[bool, typer.Option("--overwrite", help="Delete what is there.")]
_Zoos = Annotated[list[Path], typer.Argument(help="Folders of zoos of one task.")]
_COLUMNS = ("member", "family", "tier", "split", "steps", "skill", "began", "events per episode")


def train(
    method: Annotated[
        str,
        typer.Argument(
            help="fcp, mep, brdiv, lbrdiv, comedi, behavior; or scripted, physical: untrained."
        ),
    ],
    settings: Settings = None,
    task: Annotated[str, typer.Option("--task", "-t", help="Registered task.")] = "crossing",
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder of the zoo; default runs/zoo-TASK-METHOD."),
    ] = None,
    workers: Workers = None,
    executor: Executor = "local",
    resources: Resources = None,
    resume: _Resume = False,
    overwrite: _Overwrite = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Train a population of partners and seal it."""
    with typed_exits(as_json=as_json):
        from cadenza.benchmark.output_folder import output_mode
        from cadenza.benchmark.zoo.build import train_zoo

        config = _configured(method, task, settings or [])
        folder = out or Path("runs") / f"zoo-{config.task}-{config.method}"
        with progress_bar("training", quiet=quiet or as_json) as report:
            manifest = train_zoo(
                config,
                out=folder,
                workers=workers,
                cluster=cluster_of(executor, resources or []),
                mode=output_mode(resume=resume, overwrite=overwrite),
                progress=report,
            )
        _print_zoo(folder, manifest, as_json=as_json)
        if manifest.unlearned:
            trained = sum(member.began is not None for member in manifest.members)
            typer.echo(
                f"warning: {len(manifest.unlearned)} of {trained} members are not better than "
                f"before their training, beyond the intervals: {', '.join(manifest.unlearned)}; "
                "train for more steps, or with other settings.",
                err=True,
            )


def list_zoos(
    root: Annotated[Path, typer.Argument(help="Folder to look in.")] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """List the zoos in a folder."""
    with typed_exits(as_json=as_json):
        from cadenza.core.errors import IntegrityError
        from cadenza.partners.zoo_manifest import MANIFEST_NAME, read_manifest

        rows: list[dict[str, Any]] = []
        for path in sorted(root.glob(f"**/{MANIFEST_NAME}")):
            try:
                manifest = read_manifest(path.parent)
            except IntegrityError as error:
                typer.echo(f"left out: {error}", err=True)
                continue
            families = sorted({member.family for member in manifest.members})
            public = sum(member.split == "public" for member in manifest.members)
            rows.append(
                {
                    "zoo": str(path.parent),
                    "task": f"{manifest.task}@v{manifest.task_version}",
                    "families": families,
                    "members": len(manifest.members),
                    "public": public,
                }
            )
        if as_json:
            print_json({"zoos": rows})
            return
        cells = [
            (r["zoo"], r["task"], ", ".join(r["families"]), str(r["members"]), str(r["public"]))
            for r in rows
        ]
        print_table("Zoos", ("zoo", "task", "families", "members", "public"), cells)


def show(
    zoo: Annotated[Path, typer.Argument(help="Folder of the zoo.")],
    as_partners: Annotated[
        bool, typer.Option("--as-partners", help="Print them for an evaluation's file (YAML).")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the members of a zoo, after checking every file of them against the manifest."""
    with typed_exits(as_json=as_json):
        from cadenza.partners.zoo_manifest import read_manifest
        from cadenza.partners.zoo_member import verify_members

        manifest = read_manifest(zoo)
        verify_members(zoo, manifest)
        if as_partners:
            print_text("\n".join(["partners:", *(_as_partner(zoo, m) for m in manifest.members)]))
            return
        _print_zoo(zoo, manifest, as_json=as_json)


def select(
    zoos: _Zoos,
    size: Annotated[int, typer.Option("--size", "-n", min=1, help="Members, at most.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the new zoo.")],
    criterion: Annotated[
        str,
        typer.Option(
            "--criterion",
            "-c",
            help="mep (they differ in what they do), pe (population entropy), fcp (every skill) or "
            "br_div (they want different best responses).",
        ),
    ] = "mep",
    quota: Annotated[
        list[str] | None,
        typer.Option("--quota", help="Limit of a tier or family, e.g. final=4; repeatable."),
    ] = None,
    floor: Annotated[
        float | None,
        typer.Option("--floor", help="Smallest lower bound of the skill, for all tiers but init."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Root of the draws.")] = 0,
    overwrite: _Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Choose members of zoos and seal them as a new zoo."""
    with typed_exits(as_json=as_json):
        from cadenza.benchmark.zoo.selecting import select_members
        from cadenza.core.errors import ConfigurationError
        from cadenza.core.key_values import apply_settings

        known: dict[str, Criterion] = {"mep": "jsd", "pe": "pe", "fcp": "fcp", "br_div": "br_div"}
        if criterion not in known:
            raise ConfigurationError(
                f"--criterion: expected one of {', '.join(known)}, got {criterion!r}."
            )
        most = apply_settings({}, quota or ())
        if not all(type(count) is int and count >= 0 for count in most.values()):
            raise ConfigurationError(f"--quota: expected e.g. final=4, got {most}.")
        manifest, chosen = select_members(
            zoos,
            size=size,
            criterion=known[criterion],
            out=out,
            quota=most,
            floor=floor,
            seed=seed,
            mode="overwrite" if overwrite else "new",
        )
        _print_zoo(out, manifest, as_json=as_json)
        if as_json:
            return
        if chosen.trace:
            kind = "determinant" if criterion == "br_div" else "diversity, nats"
            print_text(f"{kind}: {', '.join(f'{value:.3g}' for value in chosen.trace)}")
        if chosen.versus_fcp is not None:
            gain, low, high = chosen.versus_fcp
            print_text(f"more than by the criterion fcp: {gain:+.3g} [{low:.3g}, {high:.3g}]")
        if chosen.stopped is not None:
            print_text(f"stopped at {len(chosen.names)}: {chosen.stopped}")


def best_response(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ZOO] [KEY=VALUE]...",
            help="Folder of a zoo, and settings of the budget, e.g. steps=1_000_000 seeds=3.",
        ),
    ] = None,
    task: Annotated[
        str | None, typer.Option("--task", "-t", help="Task of --partners, without a zoo.")
    ] = None,
    partners: Annotated[
        list[str] | None,
        typer.Option("--partners", help="Registered partner, without a zoo; repeatable."),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", help="Setting of --task, e.g. size=7; repeatable."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Output folder; default `best-responses` in the zoo's, or "
            "runs/best-responses-TASK.",
        ),
    ] = None,
    workers: Workers = None,
    executor: Executor = "local",
    resources: Resources = None,
    resume: _Resume = False,
    overwrite: _Overwrite = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Train an ego beside every partner alone: the best that can be done, as far as we know."""
    with typed_exits(as_json=as_json):
        from cadenza.benchmark.output_folder import output_mode
        from cadenza.benchmark.tasks import get_task
        from cadenza.benchmark.zoo.responses import (
            RESPONSES_FOLDER,
            ResponseConfig,
            partners_by_name,
            train_responses,
        )
        from cadenza.core.errors import ConfigurationError, refuse
        from cadenza.core.key_values import apply_settings
        from cadenza.partners.zoo_manifest import read_manifest

        zoos = [word for word in words or () if "=" not in word]
        settings = [word for word in words or () if "=" in word]
        by_name = task is not None and bool(partners) and not zoos
        if not by_name and (len(zoos) != 1 or task or partners or option):
            given = [*zoos, *([f"--task {task}"] if task else ())]
            given += [f"--partners {name}" for name in partners or ()]
            given += [f"--option {setting}" for setting in option or ()]
            refuse(
                ConfigurationError,
                "zoo best-response",
                expected="one zoo, or --task, --partners and --option of it",
                got=", ".join(given) or "neither",
            )
        zoo = Path(*zoos)
        if by_name:
            options = apply_settings({}, option or ())
            manifest = partners_by_name(get_task(str(task)), partners or (), options)
        else:
            manifest = read_manifest(zoo)
        plain = ResponseConfig().model_dump()
        config = explained(
            Path("zoo best-response"),
            ResponseConfig,
            lambda: ResponseConfig.model_validate(apply_settings(plain, settings)),
        )
        folder = out or (
            Path("runs") / f"{RESPONSES_FOLDER}-{task}" if by_name else zoo / RESPONSES_FOLDER
        )
        with progress_bar("best responses", quiet=quiet or as_json) as report:
            trained = train_responses(
                manifest,
                config,
                zoo=zoo,
                out=folder,
                workers=workers,
                cluster=cluster_of(executor, resources or []),
                mode=output_mode(resume=resume, overwrite=overwrite),
                progress=report,
            )
        _print_responses(folder, manifest.task, trained, as_json=as_json)


def matrix(
    zoos: _Zoos,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Output folder; `matrix` in the first zoo's by default."),
    ] = None,
    ego: Annotated[
        list[str] | None,
        typer.Option(
            "--ego",
            help="Further ego: policy, agent, checkpoint, ONNX file, folder of a training or of "
            "policies, or a built-in policy; repeatable.",
        ),
    ] = None,
    seen: Annotated[
        list[Path] | None,
        typer.Option(
            "--seen",
            help="One of the zoos, with which egos trained whose files do not say it; repeatable. "
            "Without it, these may have met every public member.",
        ),
    ] = None,
    condition: Annotated[
        str,
        typer.Option(
            "--condition",
            help="as_trained: behind the safety filter of the egos' training; or plain: without.",
        ),
    ] = "as_trained",
    best_responses: Annotated[
        Path | None,
        typer.Option(
            "--best-responses", help="File of best responses; by default those of the zoos."
        ),
    ] = None,
    encounters: Annotated[
        int,
        typer.Option("--encounters", min=0, help="Meet each partner so many times in a row, too."),
    ] = 0,
    episodes: Annotated[
        int, typer.Option("--episodes", min=5, help="Episodes of a cell, over five seeds.")
    ] = 50,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Chooses the seeds.")] = 0,
    workers: Workers = None,
    resume: _Resume = False,
    overwrite: _Overwrite = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Play every learned ego with every partner; seal the results and write a report."""
    with typed_exits(as_json=as_json):
        from cadenza.benchmark.zoo.judging import judge
        from cadenza.benchmark.zoo.matrix import MATRIX_JSON
        from cadenza.benchmark.zoo.verdict import REPORT_HTML
        from cadenza.core.errors import ConfigurationError

        if condition not in ("as_trained", "plain"):
            raise ConfigurationError(
                f"--condition: expected as_trained or plain, got {condition!r}."
            )
        out = out or zoos[0] / "matrix"
        with stage_bars(quiet=quiet or as_json) as report:
            tables = judge(
                zoos,
                out=out,
                best_responses=best_responses,
                encounters=encounters,
                seed=seed,
                workers=workers,
                progress=report,
                egos=ego or (),
                seen=seen or (),
                condition=condition,
                episodes=episodes,
                resume=resume,
                overwrite=overwrite,
            )
        if as_json:
            print_text((out / MATRIX_JSON).read_text("utf-8").rstrip())
            return
        for table in tables:
            print_table(table.title, table.columns, table.rows)
        print_text(f"matrix: {out / MATRIX_JSON}\nreport: {out / REPORT_HTML}")


def film(
    matrix: Annotated[Path, typer.Argument(help="Folder of a matrix.")],
    ego: Annotated[str, typer.Argument(help="One of its egos.")],
    partner: Annotated[str, typer.Argument(help="One of its partners.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="File: .png, .gif, .mp4 or .json.")],
    start: Annotated[int, typer.Option("--start", min=0, help="Which start of the cell.")] = 0,
) -> None:
    """Play an episode of a matrix's cell again and write pictures of it."""
    with typed_exits():
        from cadenza.benchmark.cells import PLAN_NAME, EvaluationPlan
        from cadenza.benchmark.films import film_cell
        from cadenza.benchmark.zoo.matrix import read_matrix
        from cadenza.core.errors import ConfigurationError

        found = read_matrix(matrix)
        if found is None:
            raise ConfigurationError(f"{matrix}: expected the folder of a matrix, got another.")
        result = film_cell(
            out,
            EvaluationPlan.from_bytes((matrix / PLAN_NAME).read_bytes()),
            ego=ego,
            partner=partner,
            start=start,
            artifacts_root=matrix / found.artifacts_root,
        )
        print_text(f"{out}: {result['steps']} steps, success {result['info'].get('success')}")


def _configured(method: str, task: str, settings: Sequence[str]) -> "ZooConfig":
    """Return the configuration of ``method`` for ``task``, with ``KEY=VALUE`` settings applied."""
    from cadenza.benchmark.zoo.config import ZooConfig
    from cadenza.core.key_values import apply_settings

    def read() -> ZooConfig:
        plain = ZooConfig.model_validate({"method": method, "task": task}).model_dump()
        return ZooConfig.model_validate(apply_settings(plain, settings))

    return explained(Path("zoo train"), ZooConfig, read)


def _print_zoo(folder: Path, manifest: "ZooManifest", *, as_json: bool) -> None:
    if as_json:
        facts = manifest.model_dump(mode="json")
        print_json({"zoo": str(folder), **facts, "unlearned": manifest.unlearned})
        return
    rows = [
        (
            m.name,
            m.family,
            m.tier,
            m.split.replace("_", " "),
            str(m.step),
            _shown(m.skill) + (" (as at its start)" if m.is_unlearned else ""),
            _shown(m.began),
            _described(m),
        )
        for m in manifest.members
    ]
    print_table(f"{folder}: {len(rows)} members on {manifest.task}", _COLUMNS, rows)
    if any(m.began is not None for m in manifest.members):
        print_text(
            "skill: beside the ego of the member's last checkpoint, for earlier ones, too; began: "
            "beside its own before the training, in the same episodes"
        )


def _print_responses(
    folder: Path, task: str, trained: "Mapping[str, TrainedResponse]", *, as_json: bool
) -> None:
    from cadenza.benchmark.zoo.responses import RESPONSES_JSON

    if as_json:
        facts = {name: one.model_dump(mode="json") for name, one in trained.items()}
        print_json({"best_responses": str(folder), "partners": facts})
        return
    rows = [
        (
            name,
            _shown(one.random, digits=2),
            _shown(one.score, digits=2),
            f"{one.steps[one.best]} of {one.steps[-1]}",
            "" if one.score.is_above(one.random) else "a random ego may do as well: no bound",
        )
        for name, one in trained.items()
    ]
    columns = ("partner", "random ego", "best response", "steps", "")
    print_table(f"Best responses on {task}", columns, rows)
    print_text(f"for reports: {folder / RESPONSES_JSON}")


def _described(member: "ZooMember") -> str:
    """Return its mean events, or its options if it was not measured."""
    if not member.features:
        return ", ".join(f"{key} {value}" for key, value in member.options.items()) or "-"
    return ", ".join(f"{name} {count:.2g}" for name, count in member.features.items())


def _shown(skill: "Skill | None", digits: int = 1) -> str:
    """Return a skill with its interval, returns with so many ``digits``."""
    if skill is None:
        return "-"
    scale, digits = (100.0, 0) if skill.metric == "success" else (1.0, digits)
    unit = " %" if skill.metric == "success" else ""
    text = f"{scale * skill.value:.{digits}f}{unit}"
    if skill.low is None or skill.high is None:
        return text
    return f"{text} [{scale * skill.low:.{digits}f}, {scale * skill.high:.{digits}f}]"


def _as_partner(zoo: Path, member: "ZooMember") -> str:
    """Return a partner of an evaluation's file, whose addresses begin at the current folder."""
    lines = [f"  - name: {member.name}", f"    class_name: {member.class_name}"]
    if member.sha256 is not None:
        lines += [
            f"    seed: {member.seed}",
            f"    checkpoint_step: {member.step}",
            f"    weights_uri: local://{zoo.as_posix()}/{member.file}",
        ]
    if member.options:
        lines.append("    extra:")
        lines += [f"      {key}: '{value}'" for key, value in member.options.items()]
    return "\n".join(lines)


def train_draft_zoo(
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Artifacts folder; else the one partners load from."),
    ] = None,
    frames: Annotated[
        int | None, typer.Option("--frames", min=1, help="Frames per partner, for trying out.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train the two learned partners of the draft zoo on the push task; replaces earlier ones."""
    with typed_exits(as_json=as_json):
        from cadenza.benchmark.training import train_draft_zoo
        from cadenza.partners.weights import artifacts_folder

        members = train_draft_zoo(
            out or artifacts_folder(),
            frames=frames,
            progress=None if as_json else lambda name: print_text(f"training {name} ..."),
        )
        columns = ("partner", "partner_id", "frames", "mean_return", "path")
        rows = [
            (m.spec.class_name, m.spec.partner_id, m.frames, m.mean_return, str(m.path))
            for m in members
        ]
        if as_json:
            print_json({"members": [dict(zip(columns, row, strict=True)) for row in rows]})
        else:
            text = [(*row[:2], str(row[2]), f"{row[3]:.1f}", row[4]) for row in rows]
            print_table("Draft zoo", columns, text)
