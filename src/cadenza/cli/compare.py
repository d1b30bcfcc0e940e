"""`cadenza eval diff` and `cadenza eval compare`: did it get better?"""

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cadenza.cli.output import AsJson, ExitCode, print_json, print_text, typed_exits
from cadenza.core.errors import ConfigurationError

if TYPE_CHECKING:
    from cadenza.evaluation.imports import Results
    from cadenza.evaluation.judgement import Finding, Judgement

_EXITS: Final = {
    "better": ExitCode.OK,
    "not worse": ExitCode.OK,
    "worse": ExitCode.WORSE,
    "undecided": ExitCode.UNDECIDED,
    "not comparable": ExitCode.NOT_COMPARABLE,
}


def compare(
    reference: Annotated[str, typer.Argument(help="Results of the old policy: file or folder.")],
    candidates: Annotated[list[str], typer.Argument(help="Results of the new policies.")],
    paired_by: Annotated[
        str, typer.Option("--paired-by", help="proof, or position: the n-th episodes began alike.")
    ] = "proof",
    eval_seed: Annotated[
        int | None, typer.Option("--eval-seed", help="Seed of all evaluations, for position.")
    ] = None,
    environments: Annotated[
        int | None, typer.Option("--environments", help="How many ran at once, for LIBERO.")
    ] = None,
    score_range: Annotated[
        tuple[float, float] | None,
        typer.Option("--score-range", help="Judge scores in this range instead of successes."),
    ] = None,
    mapping: Annotated[
        str, typer.Option("--map", help="Columns of a CSV, e.g. start=slot,success=ok.")
    ] = "",
    margin: Annotated[
        float | None,
        typer.Option(help='Loss that does not matter; allows the verdict "not worse".'),
    ] = None,
    despite: Annotated[
        str | None, typer.Option(help="Why to judge sides that state different rules.")
    ] = None,
    fail_on: Annotated[
        str, typer.Option(help="undecided, or worse: then undecided exits with 0.")
    ] = "undecided",
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print Markdown, for a pull request.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compare bundles or results of any tool; FILE#ARM names one arm of a file."""
    with typed_exits(as_json=as_json):
        from cadenza.evaluation.imports import load_arm
        from cadenza.evaluation.judgement import Question, judge

        if paired_by != ("proof" if eval_seed is None else "position"):
            raise ConfigurationError(
                "--paired-by: expected proof, or position with the --eval-seed of all evaluations, "
                f"got {paired_by} {'without' if eval_seed is None else 'with'} --eval-seed."
            )
        if as_json and markdown:
            raise ConfigurationError("expected --json or --markdown, got both.")
        if fail_on not in ("undecided", "worse"):
            raise ConfigurationError(f"--fail-on: expected undecided or worse, got {fail_on}.")
        columns: dict[str, str] = {}
        for pair in filter(None, mapping.split(",")):
            name, _, column = map(str.strip, pair.partition("="))
            columns[name] = column
        low, high = score_range or (0.0, 1.0)
        if not low < high:
            raise ConfigurationError(f"--score-range: expected LOW < HIGH, got {low:g} {high:g}.")
        if margin is not None and not 0.0 < margin < high - low:
            points = f"; points? say {margin / 100:g}" if score_range is None else ""
            raise ConfigurationError(
                f"--margin: expected above 0 and below {high - low:g}, got {margin:g}{points}."
            )
        names = [f"{Path(name)}" for name in (reference, *candidates)]
        arms = {name: load_arm(name, columns, _read_bundle) for name in names}
        if len(arms) < len(names):
            raise ConfigurationError(f"expected different results, got {', '.join(names)}.")
        question = Question(
            margin=margin,
            score_range=score_range,
            position_seed=eval_seed,
            environments=environments,
            despite=despite,
        )
        judgement = judge(arms, question)
        if as_json:
            ranking = judgement.ranking
            best = ranking and {"best": ranking.best, "ranks": ranking.ranks}
            told = asdict(replace(judgement, ranking=None)) | {"ranking": best}
            asked = {"margin": margin, "despite": despite}
            print_json({"verdict": judgement.verdict} | asked | told)
        else:
            print_text("\n".join(_lines(judgement, despite, margin, markdown=markdown)))
        code = _EXITS[judgement.verdict]
        if code and not (code is ExitCode.UNDECIDED and fail_on == "worse"):
            raise typer.Exit(code)


def _read_bundle(folder: Path) -> "Results":
    from cadenza.benchmark.bundle_rows import read_bundle

    return read_bundle(folder)


def _lines(
    judgement: "Judgement", despite: str | None, margin: float | None, *, markdown: bool
) -> list[str]:
    """Return the answer for people, the verdict first."""
    item, strong = ("- ", "**") if markdown else ("  ", "")
    gap = [""] if markdown else []

    def answer(finding: "Finding", place: str) -> str:
        verdict = finding.comparison.words
        sentence = finding.comparison.sentence().removeprefix(verdict)
        return f"{place}: {strong}{verdict}{strong}{sentence}"

    lines: list[str] = []
    several = len(judgement.overall) > 1
    first = "- " if markdown and several else ""
    for finding in judgement.overall:
        lines.append(first + answer(finding, finding.arm))
        if finding.as_failures:
            lines.append(f"{item}with every abandoned episode as a failure: {finding.as_failures}")
    if judgement.differences:
        judged = f"judged despite different rules: {despite}"
        refused = f"{strong}not comparable{strong}: different rules (--despite REASON judges them)"
        lines += [judged if despite else refused, *(item + one for one in judgement.differences)]
    if judgement.ranking is not None:
        ranks = judgement.ranking.ranks.items()
        lines.append(f"{first}cannot be told from the best: {', '.join(judgement.ranking.best)}")
        told = ", ".join(f"{name} {low} to {high}" for name, (low, high) in ranks)
        lines.append(f"{first}ranks: {told}; they and verdicts go by Holm p, over all pairs")
    declared = "" if margin is None else f"; margin {margin:g}"
    lines += [*gap, f"{judgement.basis}{declared}", *gap]
    for name, counts in judgement.counts.items():
        told = (f"{count} {kind}" for kind, count in counts.items() if count)
        lines.append(f"{item}{name}: {', '.join(told)}")
    if judgement.by_task:
        family = f"verdicts by Holm p, over {len(judgement.by_task)}; each interval by itself"
        lines += [*gap, f"by task; {family}", *gap]
        for finding in judgement.by_task:
            place = f"{finding.arm}, {finding.task}" if several else f"{finding.task}"
            lines.append(item + answer(finding, place).partition(" Training luck")[0])
    for task, arms in judgement.one_sided.items():
        lines.append(f"{item}not judged: {task}, only in {', '.join(arms)}")
    return lines
