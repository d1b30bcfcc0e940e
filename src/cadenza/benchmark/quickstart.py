"""The whole idea in one call: train, guard, evaluate with strangers, report.

An ego is trained on the crossing task beside two partners with the safety filter on, three times
with different seeds, and evaluated beside every built-in partner, with the filter and without, from
the same starts. The three trainings are one result.

Output:   as `cadenza.benchmark.training_seeds`, the report's recorded episodes
          (``recordings.json``), and, where the filter ran, ``three_tables.json`` and
          ``three_tables.md`` over all seeds.
Resume:   the same call on the same folder goes on after a kill and repeats nothing. Results of
          other code or settings are moved next to the folder first, never mixed or deleted.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from cadenza.aht.config import EgoAHTConfig, config_fingerprint, load_config
from cadenza.benchmark.builders import code_digest
from cadenza.benchmark.cells import ConditionEntry
from cadenza.benchmark.evaluation_run import EvaluationConfig, summary_settings
from cadenza.benchmark.output_folder import open_output_folder, set_aside_other_run
from cadenza.benchmark.recordings import record_starts
from cadenza.benchmark.safety_tables import safety_report, solver_version_of
from cadenza.benchmark.tasks import get_task
from cadenza.benchmark.training import learning_curve
from cadenza.benchmark.training_seeds import (
    EPISODES_PER_SEED,
    JudgedSeeds,
    SeedRunner,
    TrainedSeed,
    evaluation_of,
    partners_of,
    require_free_settings,
    write_result,
)
from cadenza.benchmark.verify import all_ok
from cadenza.core.files import (
    atomic_write_bytes,
    atomic_write_text,
    canonical_json,
    sha256_bytes,
)
from cadenza.core.progress import StageReport
from cadenza.core.provenance import compute_run_metadata
from cadenza.core.shipped_configs import shipped_config
from cadenza.core.signals import ends_on_signals
from cadenza.core.tables import Table
from cadenza.envs.crossing_motion import CONTROL_TIMESTEP
from cadenza.evaluation.report.analysis import analyse
from cadenza.evaluation.report.render import verdict
from cadenza.evaluation.report.view import (
    RECORDINGS_NAME,
    Check,
    Fact,
    LearningCurve,
    Recordings,
    ReportView,
    Statement,
)
from cadenza.evaluation.results import CellSummary
from cadenza.evaluation.summary import compute_summary
from cadenza.safety.reporting.rendering import JSON_NAME, MARKDOWN_NAME, report_files


def build_view(judged: JudgedSeeds, recordings: Recordings) -> ReportView:
    """Return the report's content; equal results give equal views."""
    view = judged.view
    runs = [
        Fact(label=f"Training run, seed {each.config.seed}", value=each.curve.run_id, code=True)
        for each in judged.trained
    ]
    return replace(
        view,
        title="An ego robot meets partners it has never met",
        statements=(*view.statements, *_statements(view)),
        provenance=(*view.provenance, *runs),
        success_meaning="the ego reached its goal in time without contact",
        contact_distance_m=recordings.contact_distance_m,
        control_timestep_s=CONTROL_TIMESTEP,
        learning=tuple(_learning(each, view) for each in judged.trained),
        rollouts=recordings.rollouts,
        picks=recordings.picks,
        tables=(*view.tables, *_settings(judged)),
    )


def _statements(view: ReportView) -> Iterator[Statement]:
    """Say what this filter and these partners allow to conclude."""
    hunters = [partner.label for partner in view.partners if not partner.leaves_way]
    if hunters:
        yield Statement(
            kind="caution",
            text=f"Some partners may block the ego's way to its goal ({', '.join(hunters)}). With "
            "them, the filter can keep the ego safe, but it cannot promise that the ego arrives.",
        )
    yield Statement(
        kind="caution",
        text="The filter's certificate covers the ego beside one partner that keeps within its "
        "declared acceleration bound, for discs of known size, exact positions and velocities, and "
        "accelerations held over each control step. Several partners at once can leave no action "
        "that satisfies every constraint; such steps are counted above. It says nothing about "
        "partners among themselves, and nothing once a bound is exceeded.",
    )
    yield Statement(
        kind="not_measured",
        text="Sensor noise, delays, lost messages, other robot shapes and real hardware.",
    )


def _learning(run: TrainedSeed, view: ReportView) -> LearningCurve:
    seen = [partner.label for partner in view.partners if partner.seen]
    return learning_curve(
        run.curve,
        label=f"training seed {run.config.seed}, partner{'s' * (len(seen) > 1)} "
        f"{', '.join(seen)}, filter " + ("on" if run.config.safety.enabled else "off"),
    )


def _settings(judged: JudgedSeeds) -> Iterator[Table]:
    config = judged.trained[0].config
    yield Table(
        title="Safety filter",
        columns=("setting", "value"),
        rows=_rows(config.safety.model_dump(mode="json")),
        caption="The same in training and evaluation.",
    )
    training = {
        "total_frames": config.total_frames,
        "seeds": ", ".join(str(each.config.seed) for each in judged.trained),
        **config.section.model_dump(mode="json"),
    }
    yield Table(title="Training", columns=("setting", "value"), rows=_rows(training))


def _rows(values: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    return tuple((name, str(value)) for name, value in values.items())


#: Configuration that is trained.
TRAINING_CONFIG: Final = "train/crossing.yaml"
#: Training seeds.
TRAINING_SEEDS: Final = (0, 1, 2)
FILTER_ON: Final = "filter_on"
FILTER_OFF: Final = "filter_off"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuickstartResult:
    """What a quickstart produced.

    Bundles are by policy, one per training seed, and so are checkpoints; ``cells`` have training
    seeds as clusters. ``partners`` are in display order, as (name, seen in training, always leaves
    the ego a way); ``view`` is what the report shows, ``verdict`` its sentence.
    """

    report: Path
    bundles: Mapping[str, Path]
    checkpoints: Sequence[Path]
    cells: Sequence[CellSummary]
    partners: Sequence[tuple[str, bool, bool]]
    checks: Sequence[Check]
    verdict: str
    view: ReportView

    @property
    def verified(self) -> bool:
        """Whether every check of the bundles holds, as in `cadenza eval verify`."""
        return all_ok(self.checks)

    def cell(self, condition: str, partner: str) -> CellSummary:
        """Return the summary of one condition with one partner."""
        return next(c for c in self.cells if (c.condition, c.partner) == (condition, partner))

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Return column headings and one row of text per partner, for a terminal.

        ``met`` says whether the ego trained with the partner, ``way`` whether the partner
        always leaves it one; the figures are success rates with their intervals.
        """
        columns = ("partner", "met", "way", "with filter", "contacts", "closest")
        columns += ("without", "contacts")
        rows = [
            (
                name,
                "yes" if seen else "no",
                "yes" if way else "no",
                *_figures(self.cell(FILTER_ON, name)),
                *_figures(self.cell(FILTER_OFF, name))[:2],
            )
            for name, seen, way in self.partners
        ]
        return columns, rows


@ends_on_signals
def run_quickstart(
    *,
    out: Path,
    seeds: Sequence[int] = TRAINING_SEEDS,
    workers: int | None = None,
    overwrite: bool = False,
    overrides: Sequence[str] = (),
    episodes_per_seed: int = EPISODES_PER_SEED,
    repo_root: Path | None = None,
    progress: StageReport | None = None,
) -> QuickstartResult:
    """Train, evaluate, verify and report; go on where an earlier call in ``out`` stopped.

    Args:
        out: Output folder.
        seeds: Training seeds.
        workers: Processes; by default one per core.
        overwrite: Delete an earlier run in ``out`` first.
        overrides: Settings of the training to change, e.g. ``["total_frames=50000"]``.
        episodes_per_seed: Episodes per evaluation seed, partner and condition.
        repo_root: Source tree for the provenance; by default this package's own checkout.
        progress: Called with progress.

    Raises:
        ConfigurationError: ``out`` holds something else, or an override does not fit.
        CadenzaError: Training or evaluation failed; what was finished is kept.
    """
    runner = SeedRunner(out=out, workers=workers, repo_root=repo_root, progress=progress)
    with open_output_folder(out, mode="overwrite" if overwrite else "resume"):
        config = training_config(out, overrides)
        set_aside_other_run(out, _identity(config, seeds, episodes_per_seed, repo_root))
        trained = runner.train(config, seeds)
        evaluation = evaluation_of(
            trained,
            out=out,
            episodes_per_seed=episodes_per_seed,
            conditions=(
                ConditionEntry(name=FILTER_ON, safety=config.safety),
                ConditionEntry(
                    name=FILTER_OFF, safety=config.safety.model_copy(update={"enabled": False})
                ),
            ),
        )
        command = _repro_command(seeds, overrides, episodes_per_seed)
        judged = runner.judge(trained, evaluation, repro_command=command)
        return _finish(judged, evaluation)


def _finish(judged: JudgedSeeds, evaluation: EvaluationConfig) -> QuickstartResult:
    """Write report and tables, and return everything."""
    first = judged.runs[0]
    recordings = record_starts(
        judged.evaluation.plan,
        first.bundle.policy_id,
        first.episodes,
        artifacts_root=judged.report.parent.resolve(),
    )
    picks = {name: f"Of the first training seed. {rule}" for name, rule in recordings.picks.items()}
    recordings = recordings.model_copy(update={"picks": picks})
    view = build_view(judged, recordings)
    _write_safety_tables(judged, view)
    write_result(judged, view)
    atomic_write_text(judged.report.with_name(RECORDINGS_NAME), recordings.model_dump_json() + "\n")
    return QuickstartResult(
        report=judged.report,
        bundles=judged.evaluation.bundles,
        checkpoints=[each.checkpoint for each in judged.trained],
        cells=compute_summary(view.episodes, summary_settings(evaluation)).cells,
        partners=[(p.partner_id, bool(p.seen), p.leaves_way) for p in view.partners],
        checks=view.verification,
        verdict=" ".join(verdict(view, analyse(view)).split()),  # plain spaces for a terminal
        view=view,
    )


def _write_safety_tables(judged: JudgedSeeds, view: ReportView) -> None:
    """Put safety tables over all seeds beside the report; none if the filter never ran."""
    plan = judged.evaluation.plan
    tables = safety_report(plan, view.episodes, solver_version=solver_version_of(plan))
    files = {} if tables is None else report_files(tables)
    for name in (MARKDOWN_NAME, JSON_NAME):
        if name in files:
            atomic_write_bytes(judged.report.with_name(name), files[name])
        else:
            judged.report.with_name(name).unlink(missing_ok=True)  # of a call with the filter


def training_config(out: Path, overrides: Sequence[str]) -> EgoAHTConfig:
    """Return what a quickstart in ``out`` trains with every seed."""
    require_free_settings(overrides, out)
    return load_config(config_path=shipped_config(TRAINING_CONFIG), overrides=list(overrides))


def _repro_command(seeds: Sequence[int], overrides: Sequence[str], episodes_per_seed: int) -> str:
    """Return the command line that gives the same bundles, wherever its output goes."""
    words = ["cadenza", "quickstart", *overrides, "--seeds", ",".join(map(str, seeds))]
    if episodes_per_seed != EPISODES_PER_SEED:
        words += ["--episodes", str(episodes_per_seed)]
    return shlex.join(words)


def _identity(
    config: EgoAHTConfig, seeds: Sequence[int], episodes_per_seed: int, repo_root: Path | None
) -> str:
    """Return what must be equal for a run to continue the results in the folder."""
    context = compute_run_metadata(
        seed=0,
        run_kind=config.algo,
        repo_root=repo_root,
        config_fingerprint=config_fingerprint(config),
    )
    parts = {
        "run_id": context.run_id,
        "source": code_digest(
            get_task(config.env.task), (partner.class_name for partner in partners_of(config))
        ),
        "seeds": list(seeds),
        "episodes_per_seed": episodes_per_seed,
    }
    return sha256_bytes(canonical_json(parts))


def _figures(cell: CellSummary) -> tuple[str, str, str]:
    """Return success with its interval, contacts, and the smallest distance, as text."""
    success, contact = cell.success, cell.contact
    rate = f"{success.value or 0.0:.1%}"
    if success.low is not None and success.high is not None:
        rate += f" [{100 * success.low:.0f}, {100 * success.high:.0f}]"
    contacts = "" if contact is None else f"{round((contact.value or 0.0) * contact.n)}/{contact.n}"
    closest = "" if cell.min_distance_m is None else f"{cell.min_distance_m:.3f} m"
    return rate, contacts, closest
