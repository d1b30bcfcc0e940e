"""What spikes show: stage table, recommendation, gate to the next stage, leaderboard.

Counts:    runs whose bundle verifies, registered under a tag, ranked, and no rehearsals. Any other
           is listed with the reason, and counts for nothing; nor is a bundle believed that does
           not verify: it is listed under its folder's name, and its method gets no row.
Gate:      an axis passes if the lower 95 % bound of its gap reaches `GATE_PP`, and if it still does
           with the axes of its stage taken together: Holm on one-sided p-values of "the gap is not
           above the gate", at 2.5 %. The family are the axes that the stage declares, played or
           not, so that nobody gains by playing fewer. A stage passes if one of its axes does.
p-value:   the level at which the lower bound of the gap's interval (Student t on the seeds' means)
           meets the gate; 1 where the gap itself is not above it.
Limits:    the gap is necessary, not sufficient: it does not prove that partners are coupled.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from cadenza.benchmark.bundle import BUNDLE_NAME, PREREG_NAME, SPIKE_NAME
from cadenza.benchmark.reporting import load_run, report_view
from cadenza.benchmark.spike_axes import STAGE_AXES, stage_of
from cadenza.benchmark.verify import ELIGIBILITY, verify_bundle_dir
from cadenza.core.errors import ConfigurationError, InputError, PreregistrationError
from cadenza.core.files import atomic_write_json, atomic_write_text
from cadenza.core.tables import Table
from cadenza.evaluation.leaderboard import (
    GATE_PP,
    ConditionResult,
    LeaderboardEntry,
    condition_result,
    leaderboard_entry,
    render_leaderboard,
)
from cadenza.evaluation.prereg import CANONICAL_AXIS_ORDER, LockedRegistration
from cadenza.evaluation.report.render import FORMATS
from cadenza.evaluation.report.view import ReportView
from cadenza.evaluation.results import (
    Archive,
    ResultBundle,
    SpikeRun,
    SubStage,
    load_run_archive,
)
from cadenza.evaluation.statistics.cluster_means import StudentT
from cadenza.evaluation.statistics.multiplicity import holm
from cadenza.evaluation.statistics.paired import pair_episodes, paired_comparison, success_of

#: Why a run without registration does not count; its figures are shown.
TRIAL: Final = "not registered"
#: One-sided level of a stage: that of the lower end of a 95 % interval.
LEVEL: Final = 0.025


@dataclass(frozen=True, slots=True, kw_only=True)
class Spike:
    """One archive, what it was registered with, and why it does not count; None if it does."""

    path: Path
    run: SpikeRun
    registration: LockedRegistration | None = None
    reason: str | None = None

    @property
    def method(self) -> str:
        """The ego that played."""
        return str(next((e.metadata.get("policy") for e in self.run.episode_results), "nobody"))


def read_spikes(
    paths: Iterable[Path], *, repo_path: Path | None = None, allow_dirty: bool = False
) -> tuple[list[Spike], dict[Path, str]]:
    """Return every archive in and below ``paths``, and why bundles do not verify, by folder.

    Raises:
        ConfigurationError: There is no archive in one of them.
        InputError: One that verifies is not that of a spike.
    """
    found: list[Path] = []
    for path in paths:
        inside = sorted(path.rglob(SPIKE_NAME))
        if not inside:
            raise ConfigurationError(
                f"{path}: expected a folder with {SPIKE_NAME}, got none; `spike run` writes it."
            )
        found += inside
    read = {path.parent: _read(path, repo_path, allow_dirty) for path in found}
    damaged = {folder: reason for folder, reason in read.items() if isinstance(reason, str)}
    return [spike for spike in read.values() if isinstance(spike, Spike)], damaged


def _read(path: Path, repo_path: Path | None, allow_dirty: bool) -> Spike | str:
    folder = path.parent
    rows = verify_bundle_dir(folder, repo_path=repo_path, allow_dirty=allow_dirty)
    failed = sorted((r for r in rows if not r.ok), key=lambda row: row.name == ELIGIBILITY)
    reason = f"not verified: {failed[0].name}: {failed[0].detail}" if failed else None
    if reason and failed[0].name != ELIGIBILITY and (folder / BUNDLE_NAME).exists():
        return reason
    run = load_run_archive(path)
    if not isinstance(run, SpikeRun):
        raise InputError(f"{path}: expected the archive of a spike, got a {type(run).__name__}.")
    if run.rehearsal_reason or reason:
        return Spike(path=path, run=run, reason=run.rehearsal_reason or reason)
    tag = ResultBundle.model_validate_json((folder / BUNDLE_NAME).read_bytes()).prereg_git_tag
    if tag is None:
        return Spike(path=path, run=run, reason=TRIAL)
    locked = LockedRegistration(content=(folder / PREREG_NAME).read_bytes(), git_tag=tag)
    purpose = getattr(locked.protocol, "run_purpose", "another protocol")
    reason = None if purpose == "leaderboard" else f"registered for {purpose}"
    return Spike(path=path, run=run, registration=locked, reason=reason)


class AxisStatus(Archive):
    """One row of the stage table.

    ``status`` is Measured, Missing, or why what was played does not count, and then the rest is
    None. ``p_holm`` is the p-value with the axes of the stage taken together.
    """

    axis: str
    stage: SubStage
    status: str
    n_seeds: int | None = None
    result: ConditionResult | None = None
    p_holm: float | None = None
    passes: bool | None = None

    def cells(self) -> tuple[str, ...]:
        """Return the row as text; a dash where there is no number."""
        numbers, result = ["-"] * 5, self.result
        if result is not None:
            gap = (result.gap_pp, result.ci_low_pp, result.ci_high_pp)
            counts = (str(self.n_seeds), str(result.n_episodes))
            numbers = [*counts, *(f"{value:.1f}" for value in gap)]
        p = "-" if self.p_holm is None else f"{self.p_holm:.4f}"
        verdict = {None: "n/a", True: "PASS", False: "fail"}[self.passes]
        return (self.axis, self.stage, self.status, *numbers, p, verdict)


#: Columns of the stage table.
COLUMNS: Final = (
    *("Axis", "Stage", "Status", "n_seeds", "n_episodes"),
    *("gap_pp", "ci_low_pp", "ci_high_pp", "p_holm", "gate_pass"),
)


def axis_statuses(spikes: Sequence[Spike], *, gate_pp: float = GATE_PP) -> list[AxisStatus]:
    """Return the stage table of one method, all six axes in the order of the stages.

    Raises:
        InputError: Two runs of one axis count, or episodes lack their counterpart.
    """
    counted = {spike.run.axis: spike.run for spike in spikes if spike.reason is None}
    if len(counted) < sum(spike.reason is None for spike in spikes):
        raise InputError(f"expected one run per axis of {spikes[0].method}, got one twice.")
    p = {axis: gap_p(run, gate_pp=gate_pp) for axis, run in counted.items()}
    adjusted: dict[str, float] = {}
    for axes in STAGE_AXES.values():
        family = holm(np.array([p.get(axis, 1.0) for axis in axes]))
        adjusted |= dict(zip(axes, family.tolist(), strict=True))
    last = {spike.run.axis: spike for spike in spikes}
    shown = {a: s.run for a, s in last.items() if s.reason == TRIAL} | counted
    rows: list[AxisStatus] = []
    for axis in CANONICAL_AXIS_ORDER:
        run = shown.get(axis)
        result = None if run is None else condition_result(run)
        status = (last[axis].reason or "Measured") if axis in last else "Missing"
        n_seeds = run and len(run.seeds)
        row = AxisStatus(
            axis=axis, stage=stage_of(axis), status=status, n_seeds=n_seeds, result=result
        )
        if result is not None and axis in counted:
            passes = result.ci_low_pp >= gate_pp and adjusted[axis] <= LEVEL
            found = {"status": "Measured", "p_holm": adjusted[axis], "passes": passes}
            row = row.model_copy(update=found)
        rows.append(row)
    return rows


def gap_p(run: SpikeRun, *, gate_pp: float = GATE_PP) -> float:
    """Return the one-sided p-value of "the gap is not above the gate", see the module."""
    pair = run.condition_pair
    sides = {"treatment": pair.homogeneous_id, "baseline": pair.heterogeneous_id}
    pairing = pair_episodes(run.episode_results, **sides, metric=success_of)

    def shown(level: float) -> bool:
        found = paired_comparison(pairing, method=StudentT(), confidence=1.0 - 2.0 * level)
        low = found.difference.low
        return low is not None and 100.0 * low >= gate_pp

    low, high = 1e-12, 0.5 - 1e-9
    if not shown(high):
        return 1.0
    for _ in range(50):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if shown(middle) else (middle, high)
    return high


def recommendation(rows: Sequence[AxisStatus]) -> str:
    """Return what the stage table recommends, as one line that scripts can read."""
    passed = {row.axis for row in rows if row.passes}
    if all(row.passes is None for row in rows if row.stage == "1b"):
        word = "Defer"
    elif not passed.intersection(STAGE_AXES["1b"]):
        word = "Stop"
    else:
        word = "Accept-Validated" if passed >= {"CM", "PF", "CR"} else "Accept-Partial-Defer"
    return f"**Recommendation: {word}**"


def by_method(spikes: Iterable[Spike], damaged: Iterable[Path]) -> dict[str, list[Spike]]:
    """Return spikes by the ego that played, each with the trials of the rig before its own."""
    own = {f.name: list[Spike]() for f in damaged if f.parent.parent.name != "1a"}
    rigs: list[Spike] = []
    for spike in spikes:
        (rigs if spike.run.sub_stage == "1a" else own.setdefault(spike.method, [])).append(spike)
    return {method: [*rigs, *played] for method, played in (own or {"zero": []}).items()}


def leaderboard(
    spikes: Sequence[Spike], damaged: Mapping[Path, str]
) -> tuple[list[LeaderboardEntry], dict[str, str]]:
    """Return the rows of all methods, and why a method has none."""
    rows: list[LeaderboardEntry] = []
    refused = {folder.name: reason for folder, reason in damaged.items()}
    for method, own in by_method(spikes, damaged).items():
        if method in refused:
            continue
        counted = [spike for spike in own if spike.reason is None] or own[-1:]
        locks = {s.run.axis: s.registration for s in counted if s.registration and not s.reason}
        try:
            rows.append(leaderboard_entry(method, [s.run for s in counted], registrations=locks))
        except (InputError, PreregistrationError) as error:
            refused[method] = str(error)
    return rows, refused


def summary(spikes: Sequence[Spike], damaged: Mapping[Path, str]) -> dict[str, Any]:
    """Return stage table and recommendation of every method, and the leaderboard, for JSON."""
    methods: dict[str, Any] = {}
    for method, own in by_method(spikes, damaged).items():
        rows = axis_statuses(own)
        axes = [row.model_dump(mode="json") for row in rows]
        methods[method] = {"axes": axes, "recommendation": recommendation(rows)}
    entries, refused = leaderboard(spikes, damaged)
    board = [entry.model_dump(mode="json") for entry in entries]
    told = {str(folder): reason for folder, reason in damaged.items()}
    return {"methods": methods, "leaderboard": board, "no_row": refused, "damaged": told}


def summary_text(spikes: Sequence[Spike], damaged: Mapping[Path, str]) -> str:
    """Return the same in Markdown."""
    parts: list[str] = []
    for method, own in by_method(spikes, damaged).items():
        rows = axis_statuses(own)
        cells = tuple(row.cells() for row in rows)
        table = Table(title=method, columns=COLUMNS, rows=cells, text_columns=(0, 1, 2, 9))
        parts += [table.to_markdown(), recommendation(rows)]
    parts += [f"{folder}: {reason}" for folder, reason in damaged.items()]
    entries, refused = leaderboard(spikes, damaged)
    parts.append(render_leaderboard(entries).rstrip() if entries else "## Leaderboard")
    parts += [f"No row for `{method}`: {reason}" for method, reason in refused.items()]
    return "\n\n".join(parts) + "\n"


def write_outcome(
    out: Path, spikes: Sequence[Spike], damaged: Mapping[Path, str], *, repo_path: Path
) -> list[Path]:
    """Write summary, leaderboard and a report per ego (``report.html`` for one) into ``out``."""
    files = [out / "summary.md", out / "leaderboard.json"]
    atomic_write_text(files[0], summary_text(spikes, damaged))
    atomic_write_json(files[1], {"entries": summary(spikes, damaged)["leaderboard"]})
    played = [spike for spike in spikes if spike.run.rehearsal_reason is None]
    for spike in played:
        files.append(out / ("report.html" if len(played) == 1 else f"report-{spike.method}.html"))
        atomic_write_text(files[-1], FORMATS["html"](_gate_view(spike, repo_path)))
    return files


def _gate_view(spike: Spike, repo_path: Path) -> ReportView:
    """Return the report of one run: what the gate says, then its two conditions alone."""
    sealed = load_run(spike.path.parent, repo_path=repo_path)
    control, treatment = spike.run.condition_pair.model_dump().values()
    gated = tuple(e for e in sealed.episodes if e.condition in (control, treatment))
    view = report_view([replace(sealed, episodes=gated)])
    row = next(row for row in axis_statuses([spike]) if row.axis == spike.run.axis)
    *_, gap, low, high, p, verdict = row.cells()
    told = f"{row.status}: {control} minus {treatment}: {gap} points [{low}, {high}], gate "
    told += f"{GATE_PP:g}: {verdict} (Holm p {p}). "
    return replace(view, subtitle=told + view.subtitle, conditions=view.conditions[:2])
