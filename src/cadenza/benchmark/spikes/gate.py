"""What spikes show: stage table, recommendation, gate to the next stage, leaderboard.

Counts:    runs whose bundle verifies, registered under a tag, ranked, and no rehearsals. Any other
           is listed with the reason, and counts for nothing.
Gate:      an axis passes if the lower 95 % bound of its gap reaches `GATE_PP`, and if it still does
           with the axes of its stage taken together: Holm on one-sided p-values of "the gap is not
           above the gate", at 2.5 %. The family are the axes that the stage declares, played or
           not, so that nobody gains by playing fewer. A stage passes if one of its axes does.
p-value:   the level at which the lower bound of the gap's interval (Student t on the seeds' means)
           meets the gate; 1 where the gap itself is not above it.
Decision:  the gap is necessary, not sufficient: a coupling between partners has to be shown, too.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from cadenza.benchmark.bundle import BUNDLE_NAME, PREREG_NAME, SPIKE_NAME
from cadenza.benchmark.reporting import load_run, report_view
from cadenza.benchmark.spike_axes import STAGE_AXES, stage_of
from cadenza.benchmark.verify import verify_bundle_dir
from cadenza.core.errors import ConfigurationError, InputError, PreregistrationError
from cadenza.core.files import atomic_write_json, atomic_write_text
from cadenza.evaluation.leaderboard import (
    GATE_PP,
    ConditionResult,
    LeaderboardEntry,
    condition_result,
    leaderboard_entry,
    render_leaderboard,
)
from cadenza.evaluation.prereg import CANONICAL_AXIS_ORDER, LockedRegistration, PreregistrationSpec
from cadenza.evaluation.report.render import FORMATS
from cadenza.evaluation.results import ResultBundle, SpikeRun, SubStage, load_run_archive
from cadenza.evaluation.statistics.cluster_means import StudentT
from cadenza.evaluation.statistics.multiplicity import holm
from cadenza.evaluation.statistics.paired import pair_episodes, paired_comparison, success_of

#: One-sided level of a stage: that of the lower end of a 95 % interval.
LEVEL: Final = 0.025
#: Axes that the strongest recommendation needs.
_HEADLINE: Final = ("CM", "PF", "CR")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spike:
    """One archive, and whether it counts.

    Attributes:
        path: Its file.
        run: What it holds.
        method: The ego that played.
        registration: What its bundle was registered with; None without.
        reason: Why it counts for nothing; None for one that counts.
    """

    path: Path
    run: SpikeRun
    method: str
    registration: LockedRegistration | None = None
    reason: str | None = None


def read_spikes(
    paths: Iterable[Path], *, repo_path: Path | None = None, allow_dirty: bool = False
) -> list[Spike]:
    """Return every archive of a spike in and below ``paths``, by path.

    Args:
        paths: Folders, or files called ``spike_run.json``.
        repo_path: Git repository that holds the tags.
        allow_dirty: Accept bundles of changed sources.

    Raises:
        ConfigurationError: There is no archive in one of them.
        InputError: One cannot be read.
    """
    found: list[Path] = []
    for path in paths:
        here = [path] if path.is_file() else sorted(path.rglob(SPIKE_NAME))
        if not here:
            raise ConfigurationError(
                f"{path}: expected a folder with {SPIKE_NAME}, got none; `spike run` writes it."
            )
        found += here
    return [_read(path, repo_path, allow_dirty) for path in dict.fromkeys(found)]


def _read(path: Path, repo_path: Path | None, allow_dirty: bool) -> Spike:
    run = load_run_archive(path)
    if not isinstance(run, SpikeRun):
        raise InputError(f"{path}: expected the archive of a spike, got a {type(run).__name__}.")
    names = {str(e.metadata.get("policy", "<unknown>")) for e in run.episode_results}
    spike = Spike(path=path, run=run, method=", ".join(sorted(names)) or "<unknown>")
    reason = run.rehearsal_reason
    if reason is None and not (path.parent / BUNDLE_NAME).is_file():
        reason = "in no bundle"
    if reason is not None:
        return _changed(spike, reason=reason)
    rows = verify_bundle_dir(path.parent, repo_path=repo_path, allow_dirty=allow_dirty)
    failed = next((row for row in rows if not row.ok), None)
    if failed is not None:
        return _changed(spike, reason=f"not verified: {failed.name}: {failed.detail}")
    bundle = ResultBundle.model_validate_json((path.parent / BUNDLE_NAME).read_bytes())
    if bundle.prereg_git_tag is None:
        return _changed(spike, reason="not registered")
    locked = LockedRegistration(
        content=(path.parent / PREREG_NAME).read_bytes(), git_tag=bundle.prereg_git_tag
    )
    spec = locked.protocol
    purpose = spec.run_purpose if isinstance(spec, PreregistrationSpec) else "another protocol"
    reason = None if purpose == "leaderboard" else f"registered for {purpose}"
    return _changed(spike, reason=reason, registration=locked)


def _changed(
    spike: Spike, *, reason: str | None, registration: LockedRegistration | None = None
) -> Spike:
    return Spike(
        path=spike.path,
        run=spike.run,
        method=spike.method,
        registration=registration,
        reason=reason,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisStatus:
    """One row of the stage table.

    Attributes:
        axis: One of the six.
        stage: Stage that gates it.
        status: ``Measured``, ``Missing``, or why what was played does not count.
        n_seeds: Seeds played; None where nothing counts, as for the rest.
        result: Success rates, gap and interval.
        p: One-sided p-value of the gap against the gate.
        p_holm: The same with the stage's axes taken together; >= p.
        passes: Whether the axis passes its gate.
    """

    axis: str
    stage: SubStage
    status: str
    n_seeds: int | None = None
    result: ConditionResult | None = None
    p: float | None = None
    p_holm: float | None = None
    passes: bool | None = None


def axis_statuses(spikes: Sequence[Spike], *, gate_pp: float = GATE_PP) -> list[AxisStatus]:
    """Return the stage table of one method, all six axes in the order of the stages.

    Raises:
        InputError: Two runs of one axis count, or episodes lack their counterpart.
    """
    counted: dict[str, SpikeRun] = {}
    for spike in spikes:
        if spike.reason is None and spike.run.axis in counted:
            raise InputError(
                f"{spike.path}: expected one run per axis that counts, got {spike.run.axis} of "
                f"{spike.method} twice; name the folder of one."
            )
        if spike.reason is None:
            counted[spike.run.axis] = spike.run
    p_values = {axis: gap_p(run, gate_pp=gate_pp) for axis, run in counted.items()}
    adjusted: dict[str, float] = {}
    for axes in STAGE_AXES.values():
        family = holm(np.array([p_values.get(axis, 1.0) for axis in axes]))
        adjusted |= dict(zip(axes, family.tolist(), strict=True))
    rows: list[AxisStatus] = []
    for axis in CANONICAL_AXIS_ORDER:
        run, stage = counted.get(axis), stage_of(axis)
        if run is None:
            reasons = [spike.reason or "" for spike in spikes if spike.run.axis == axis]
            status = reasons[-1] if reasons else "Missing"
            rows.append(AxisStatus(axis=axis, stage=stage, status=status))
            continue
        result = condition_result(run)
        rows.append(
            AxisStatus(
                axis=axis,
                stage=stage,
                status="Measured",
                n_seeds=len(run.seeds),
                result=result,
                p=p_values[axis],
                p_holm=adjusted[axis],
                passes=result.ci_low_pp >= gate_pp and adjusted[axis] <= LEVEL,
            )
        )
    return rows


def gap_p(run: SpikeRun, *, gate_pp: float = GATE_PP) -> float:
    """Return the one-sided p-value of "the gap is not above the gate", see the module."""
    pairing = pair_episodes(
        run.episode_results,
        treatment=run.condition_pair.homogeneous_id,
        baseline=run.condition_pair.heterogeneous_id,
        metric=success_of,
    )

    def shown(level: float) -> bool:
        found = paired_comparison(
            pairing, method=StudentT(), confidence=1.0 - 2.0 * level, bounds=(-1.0, 1.0)
        ).difference
        return found.low is not None and 100.0 * found.low >= gate_pp

    low, high = 1e-12, 0.5 - 1e-9  # levels: shown at high, not at low, unless at the ends
    if not shown(high):
        return 1.0
    for _ in range(50):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if shown(middle) else (middle, high)
    return high


def recommendation(rows: Sequence[AxisStatus]) -> str:
    """Return what the stage table recommends, as one line that scripts can read."""
    passed = {row.axis for row in rows if row.passes}
    first = [row for row in rows if row.stage == "1b"]
    if all(row.passes is None for row in first):
        word = "Defer"
    elif not passed.intersection(STAGE_AXES["1b"]):
        word = "Stop"
    else:
        word = "Accept-Validated" if passed.issuperset(_HEADLINE) else "Accept-Partial-Defer"
    return f"**Recommendation: {word}**"


def leaderboard(spikes: Sequence[Spike]) -> tuple[list[LeaderboardEntry], dict[str, str]]:
    """Return the rows of all methods, and why a method has none."""
    rows: list[LeaderboardEntry] = []
    refused: dict[str, str] = {}
    for method, own in by_method(spikes).items():
        counted = [spike for spike in own if spike.reason is None]
        locks: Mapping[str, LockedRegistration] = {
            spike.run.axis: spike.registration for spike in counted if spike.registration
        }
        if not counted:
            refused[method] = "; ".join(dict.fromkeys(f"{s.run.spike_id}: {s.reason}" for s in own))
            continue
        try:
            runs = [spike.run for spike in counted]
            rows.append(leaderboard_entry(method, runs, registrations=locks))
        except (InputError, PreregistrationError) as error:
            refused[method] = str(error)
    return rows, refused


def by_method(spikes: Iterable[Spike]) -> dict[str, list[Spike]]:
    """Return spikes by the ego that played, each with the trials of the rig before its own."""
    own: dict[str, list[Spike]] = {}
    rigs: list[Spike] = []
    for spike in spikes:
        is_rig = spike.run.sub_stage == "1a"
        (rigs if is_rig else own.setdefault(spike.method, [])).append(spike)
    if not own and rigs:
        return {rigs[0].method: rigs}
    return {method: [*rigs, *played] for method, played in own.items()}


def write_outcome(
    out: Path, *, repo_path: Path | None, allow_dirty: bool
) -> tuple[list[Spike], dict[str, Path]]:
    """Write what the spikes in ``out`` show; return them and the files by kind.

    There is one report per ego that played a stage, ``report.html`` for a single one.
    """
    spikes = read_spikes([out], repo_path=repo_path, allow_dirty=allow_dirty)
    files = {"summary": out / "summary.md"}
    atomic_write_text(files["summary"], summary_text(spikes))
    entries, _ = leaderboard(spikes)
    if entries:
        files["leaderboard"] = out / "leaderboard.json"
        rows = [entry.model_dump(mode="json") for entry in entries]
        atomic_write_json(files["leaderboard"], {"entries": rows})
    played = [s for s in spikes if s.run.rehearsal_reason is None]
    for spike in played:
        name = "report" if len(played) == 1 else f"report-{spike.method}"
        run = load_run(spike.path.parent, repo_path=repo_path)
        files[name] = out / f"{name}.html"
        atomic_write_text(files[name], FORMATS["html"](report_view([run])))
    return spikes, files


def summary_text(spikes: Sequence[Spike]) -> str:
    """Return stage table and recommendation of every method, and the leaderboard, in Markdown."""
    parts: list[str] = []
    for method, own in by_method(spikes).items():
        rows = axis_statuses(own)
        parts += [f"## {method}", stage_table(rows), recommendation(rows)]
    entries, refused = leaderboard(spikes)
    parts.append("## Leaderboard")
    if entries:
        parts.append(render_leaderboard(entries).rstrip())
    parts += [f"- No row for `{method}`: {reason}" for method, reason in refused.items()]
    return "\n\n".join(parts) + "\n"


def stage_table(rows: Sequence[AxisStatus]) -> str:
    """Return the rows in Markdown."""
    lines = [
        "| Axis | Stage | Status | n_seeds | n_episodes | gap_pp | ci_low_pp | ci_high_pp | "
        "p_holm | gate_pass |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    for row in rows:
        cells = [row.axis, row.stage, row.status.replace("|", "\\|"), *figures(row)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def figures(row: AxisStatus) -> list[str]:
    """Return the numbers of a row as text; a dash where there is none."""
    if row.result is None or row.p_holm is None:
        return [*["-"] * 6, "n/a"]
    result = row.result
    numbers = (result.gap_pp, result.ci_low_pp, result.ci_high_pp)
    shown = [f"{value:.1f}" for value in numbers]
    verdict = "PASS" if row.passes else "fail"
    return [str(row.n_seeds), str(result.n_episodes), *shown, f"{row.p_holm:.4f}", verdict]
