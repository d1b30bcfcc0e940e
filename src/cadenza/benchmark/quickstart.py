"""The whole idea in one call: train, guard, evaluate with strangers, report.

An ego is trained on the crossing task beside two partners with the safety filter on, and evaluated
beside every built-in partner, with the filter and without, from the same starts.

Output:   ``training/`` (checkpoints, log), ``evaluation/`` (plan, cells, bundle), ``report.html``,
          and, where the filter ran, the bundle's ``three_tables.json`` and ``three_tables.md``.
Resume:   the same call on the same folder goes on after a kill and repeats nothing. Results of
          other code or settings are moved next to the folder first, never mixed or deleted.
"""

import logging
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Final, TypeAlias

from cadenza.aht.config import EgoAHTConfig, config_fingerprint, load_config
from cadenza.aht.types import RewardCurve, TrainingResult
from cadenza.benchmark.builders import code_digest
from cadenza.benchmark.cells import (
    Cell,
    CellRunner,
    ConditionEntry,
    EvaluationPlan,
    PolicyChoice,
)
from cadenza.benchmark.evaluation_run import (
    EvaluationConfig,
    EvaluationOutcome,
    PartnerChoice,
    run_evaluation,
)
from cadenza.benchmark.output_folder import open_output_folder, set_aside_other_run
from cadenza.benchmark.reporting import SealedRun, report_view
from cadenza.benchmark.tasks import get_task
from cadenza.benchmark.training import run_training
from cadenza.benchmark.verify import all_ok, verify_bundle_dir
from cadenza.core.checkpoints import LOCAL_URI_SCHEME
from cadenza.core.errors import ConfigurationError
from cadenza.core.files import (
    atomic_write_bytes,
    atomic_write_text,
    canonical_json,
    sha256_bytes,
)
from cadenza.core.provenance import compute_run_metadata
from cadenza.core.shipped_configs import shipped_config, source_checkout
from cadenza.core.signals import ends_on_signals
from cadenza.core.tables import Table
from cadenza.envs.crossing import CONTACT_DISTANCE, ROBOT_RADIUS
from cadenza.envs.crossing_motion import CONTROL_TIMESTEP
from cadenza.evaluation.report.analysis import analyse
from cadenza.evaluation.report.render import render_report, verdict
from cadenza.evaluation.report.view import (
    Check,
    EvaluationPoint,
    Fact,
    LearningCurve,
    ReportView,
    Rollout,
    Statement,
)
from cadenza.evaluation.results import CellSummary, EpisodeResult, ResultBundle, load_run_archive
from cadenza.evaluation.statistics.paired import PairedComparison
from cadenza.partners.registry import partner_card
from cadenza.safety.reporting.rendering import JSON_NAME, MARKDOWN_NAME

#: Episodes in the moving mean of the learning curve.
_LEARNING_WINDOW: Final = 50

#: How recorded starts are chosen, in the reader's words.
_PICKS: Final = {
    "typical": "A start that ends, with the filter and without it, in the way that is most common "
    "with this partner; of these starts, the one whose episode with the filter has median length.",
    "telling": "Selected for its outcome, so not typical: the first start where the filter decides "
    "(a contact under one condition, the goal under the other); failing that, the first with a "
    "contact, the first with two different endings, or the first of all.",
}

#: Episodes of every start, one per condition, by (seed, episode).
_Starts: TypeAlias = dict[tuple[int, int], list[EpisodeResult]]


@dataclass(frozen=True, kw_only=True)
class QuickstartRun:
    """Everything a quickstart produced, as the report reads it."""

    config: EgoAHTConfig
    curve: RewardCurve
    evaluation: EvaluationOutcome
    policy: str
    bundle: ResultBundle
    checks: Sequence[Check]
    folder: Path

    @property
    def plan(self) -> EvaluationPlan:
        """The evaluation's plan."""
        return self.evaluation.plan

    @cached_property
    def episodes(self) -> tuple[EpisodeResult, ...]:
        """Episodes of the policy, in plan order."""
        return tuple(self.evaluation.episodes[self.policy])

    @cached_property
    def partners(self) -> tuple[tuple[str, bool, bool], ...]:
        """Partners in plan order, as (name, seen in training, leaves the ego a way)."""
        return tuple(
            (entry.name, entry.seen, partner_card(entry.partner.class_name).leaves_way)
            for entry in self.plan.partners
        )


def build_view(run: QuickstartRun) -> ReportView:
    """Return the report's content; equal runs give equal views."""
    sealed = SealedRun(
        bundle=run.bundle, plan=run.plan, episodes=run.episodes, checks=tuple(run.checks)
    )
    view = report_view([sealed], title="An ego robot meets partners it has never met")
    return replace(
        view,
        statements=(*view.statements, *_statements(view)),
        provenance=(
            *view.provenance,
            Fact(label="Training run", value=run.curve.run_id, code=True),
        ),
        success_meaning="the ego reached its goal in time without contact",
        contact_distance_m=CONTACT_DISTANCE,
        control_timestep_s=CONTROL_TIMESTEP,
        learning=_learning(run, view),
        rollouts=tuple(_rollouts(run)),
        picks=_PICKS,
        tables=(*view.tables, *_settings(run)),
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


def _learning(run: QuickstartRun, view: ReportView) -> LearningCurve:
    complete = [episode for episode in run.curve.episodes if episode.complete]
    points = [
        EvaluationPoint(
            step=record.frame,
            n_episodes=(n := round(record.results["n_episodes"])),
            n_success=round(record.results["success_rate"] * n),
            mean_return=record.results["mean_episode_reward"],
        )
        for record in run.curve.evaluations
    ]
    seen = [partner.label for partner in view.partners if partner.seen]
    return LearningCurve(
        steps=tuple(episode.end_frame for episode in complete),
        returns=tuple(episode.episode_return for episode in complete),
        window=_LEARNING_WINDOW,
        evaluations=tuple(points),
        label=f"training seed {run.config.seed}, partner{'s' * (len(seen) > 1)} "
        f"{', '.join(seen)}, filter " + ("on" if run.config.safety.enabled else "off"),
    )


def _rollouts(run: QuickstartRun) -> Iterator[Rollout]:
    """Replay a typical and a telling start per partner under every condition."""
    runner = CellRunner(plan=run.plan, artifacts_root=run.config.artifacts_root)
    cells = {(c.policy, c.partner, c.condition, c.seed): c for c in run.plan.cells.values()}
    for name, _, _ in run.partners:
        starts = _starts(run, name)
        for pick, choose in (("typical", _typical_start), ("telling", _telling_start)):
            seed, episode = start = choose(starts)
            alike = sum(_endings(e) == _endings(starts[start]) for e in starts.values())
            for condition in run.plan.conditions:
                cell = cells[run.policy, name, condition.name, seed]
                yield _replay(runner, cell, episode, pick, f"{alike} of {len(starts)} starts")


def _starts(run: QuickstartRun, partner: str) -> _Starts:
    """Return the episodes with one partner by (seed, episode), in order of conditions."""
    starts: _Starts = {}
    offset = [name for name, _, _ in run.partners].index(partner) * run.plan.episodes_per_seed
    order = [condition.name for condition in run.plan.conditions]
    for result in sorted(run.episodes, key=lambda result: order.index(result.condition or "")):
        if result.partner == partner:
            starts.setdefault((result.seed, result.episode_idx - offset), []).append(result)
    return starts


def _endings(episodes: Sequence[EpisodeResult]) -> tuple[str, ...]:
    """Return how the episodes of one start ended."""
    return tuple("contact" if e.contact else "goal" if e.success else "time-out" for e in episodes)


def _typical_start(starts: _Starts) -> tuple[int, int]:
    """Return the start of median length, under the first condition, among the most common."""
    common, _ = Counter(map(_endings, starts.values())).most_common(1)[0]
    alike = [start for start in starts if _endings(starts[start]) == common]
    alike.sort(key=lambda start: starts[start][0].n_steps or 0)
    return alike[(len(alike) - 1) // 2]


def _telling_start(starts: _Starts) -> tuple[int, int]:
    """Return the first start of the most telling kind."""

    def interest(start: tuple[int, int]) -> tuple[bool, bool, bool]:
        endings = set(_endings(starts[start]))
        return {"contact", "goal"} <= endings, "contact" in endings, len(endings) > 1

    return max(starts, key=interest)  # the first among equals


def _replay(runner: CellRunner, cell: Cell, episode: int, pick: str, alike: str) -> Rollout:
    result, trajectory = runner.replay(cell, episode)
    return Rollout(
        condition_id=cell.condition,
        partner_id=cell.partner,
        seed=cell.seed,
        initial_state_seed=result.initial_state_seed,
        control_timestep_s=CONTROL_TIMESTEP,
        frames=tuple(
            {uid: (float(p[0]), float(p[1])) for uid, p in frame.items()}
            for frame in trajectory.frames
        ),
        goals={uid: (float(p[0]), float(p[1])) for uid, p in trajectory.goals.items()},
        radii=dict.fromkeys(trajectory.frames[0], ROBOT_RADIUS),
        contact_index=trajectory.contact_index,
        success=result.success,
        pick=pick,
        alike=alike,
        interventions=trajectory.interventions,
    )


def _settings(run: QuickstartRun) -> Iterator[Table]:
    yield Table(
        title="Safety filter",
        columns=("setting", "value"),
        rows=_rows(run.config.safety.model_dump(mode="json")),
        caption="The same in training and evaluation.",
    )
    training = {
        "total_frames": run.config.total_frames,
        "seed": run.config.seed,
        **run.config.section.model_dump(mode="json"),
    }
    yield Table(title="Training", columns=("setting", "value"), rows=_rows(training))


def _rows(values: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    return tuple((name, str(value)) for name, value in values.items())


_logger = logging.getLogger(__name__)

#: Configuration that is trained.
TRAINING_CONFIG: Final = "train/crossing.yaml"
#: Name of the trained policy in the results.
POLICY_NAME: Final = "ego"
FILTER_ON: Final = "filter_on"
FILTER_OFF: Final = "filter_off"
#: Evaluation seeds, apart from the seeds people train with.
EVALUATION_SEEDS: Final = tuple(range(100, 110))
#: Episodes per seed, partner and condition: 200 per partner and condition.
EPISODES_PER_SEED: Final = 20
#: Where results go does not change them.
_SINKS: Final = {"artifacts_root", "log_dir", "wandb", "tensorboard"}

#: Called with (stage, work done, work in all, what was last seen); the stages are ``"training"``
#: (frames), ``"evaluation"`` (cells) and ``"report"`` (steps).
QuickstartProgress: TypeAlias = Callable[[str, int, int, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuickstartResult:
    """What a quickstart produced.

    ``partners`` are in display order, as (name, seen in training, always leaves the ego a way);
    ``verdict`` is the report's sentence, ``filter_effect`` the paired change in success. Success
    rates are None for a group without partners.
    """

    report: Path
    bundle: Path
    checkpoint: Path
    cells: Sequence[CellSummary]
    partners: Sequence[tuple[str, bool, bool]]
    checks: Sequence[Check]
    n_episodes: int
    verdict: str
    filter_effect: PairedComparison | None

    @property
    def verified(self) -> bool:
        """Whether every check of the bundle holds, as in `cadenza eval verify`."""
        return all_ok(self.checks)

    def cell(self, condition: str, partner: str) -> CellSummary:
        """Return the summary of one condition with one partner."""
        return next(c for c in self.cells if (c.condition, c.partner) == (condition, partner))

    def success_with_seen(self) -> float | None:
        """Return the filtered success rate averaged over partners seen in training."""
        return self._mean_success([name for name, seen, _ in self.partners if seen])

    def success_with_unseen(self) -> float | None:
        """Return the filtered success rate averaged over unseen partners that leave a way."""
        return self._mean_success([name for name, seen, way in self.partners if way and not seen])

    def success_with_all_unseen(self) -> float | None:
        """Return the filtered success rate averaged over all unseen partners."""
        return self._mean_success([name for name, seen, _ in self.partners if not seen])

    def contacts(self, condition: str) -> int:
        """Return the number of episodes of ``condition`` that ended in contact."""
        rates = [c.contact for c in self.cells if c.condition == condition]
        return sum(round((r.value or 0.0) * r.n) for r in rates if r is not None)

    def _mean_success(self, partners: Sequence[str]) -> float | None:
        """Return the mean of the partners' filtered success rates, or None without partners."""
        rates = [self.cell(FILTER_ON, name).success.value or 0.0 for name in partners]
        return sum(rates) / len(rates) if rates else None

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
    seed: int = 0,
    workers: int | None = None,
    overwrite: bool = False,
    overrides: Sequence[str] = (),
    episodes_per_seed: int = EPISODES_PER_SEED,
    repo_root: Path | None = None,
    progress: QuickstartProgress | None = None,
) -> QuickstartResult:
    """Train, evaluate, verify and report; go on where an earlier call in ``out`` stopped.

    Args:
        out: Output folder.
        seed: Training seed.
        workers: Evaluation processes; by default one per core.
        overwrite: Delete an earlier run in ``out`` first.
        overrides: Settings of the training to change, e.g. ``["total_frames=50000"]``.
        episodes_per_seed: Episodes per evaluation seed, partner and condition.
        repo_root: Source tree for the provenance; by default this package's own checkout.
        progress: Called with progress.

    Raises:
        ConfigurationError: ``out`` holds something else, or an override does not fit.
        CadenzaError: Training or evaluation failed; what was finished is kept.
    """
    report = progress or _ignore
    with open_output_folder(out, mode="overwrite" if overwrite else "resume"):
        config = training_config(out, seed, overrides)
        aside = set_aside_other_run(out, _identity(config, episodes_per_seed, repo_root))
        if aside is not None:
            _logger.warning("An earlier run with other code or settings was moved to %s.", aside)
        training = run_training(
            config,
            repo_root=repo_root,
            resume=True,
            progress=lambda done, total, last: report(
                "training", done, total, "" if last is None else f"return {last:.1f}"
            ),
        )
        evaluation = run_evaluation(
            _evaluation_config(config, training, episodes_per_seed),
            out=out / "evaluation",
            workers=workers,
            resume=True,
            repo_root=repo_root,
            repro_command=_repro_command(seed, overrides, episodes_per_seed),
            config_sha256=_config_digest(config),
            progress=lambda done, total, last: report("evaluation", done, total, last),
        )
        report("report", 0, 1, "")
        result = _finish(out, config, training, evaluation)
        report("report", 1, 1, "")
    return result


def _finish(
    out: Path, config: EgoAHTConfig, training: TrainingResult, evaluation: EvaluationOutcome
) -> QuickstartResult:
    """Verify the bundle, write the report and return everything."""
    bundle_dir = evaluation.bundles[POLICY_NAME]
    checks = verify_bundle_dir(bundle_dir, repo_path=source_checkout())
    bundle = load_run_archive(bundle_dir / "bundle.json")
    assert isinstance(bundle, ResultBundle), "written as one above"  # noqa: S101
    run = QuickstartRun(
        config=config,
        curve=training.curve,
        evaluation=evaluation,
        policy=POLICY_NAME,
        bundle=bundle,
        checks=checks,
        folder=out / "evaluation",
    )
    _copy_safety_tables(bundle_dir, out)
    report = out / "report.html"
    view = build_view(run)
    atomic_write_text(report, render_report(view))
    numbers = analyse(view)
    return QuickstartResult(
        report=report,
        bundle=bundle_dir,
        checkpoint=training.curve.checkpoint_paths[-1],
        cells=bundle.summary.cells,
        partners=run.partners,
        checks=checks,
        n_episodes=bundle.summary.n_episodes,
        verdict=" ".join(verdict(view, numbers).split()),  # plain spaces for a terminal
        filter_effect=numbers.overall.comparisons.get("success"),
    )


def _copy_safety_tables(bundle: Path, out: Path) -> None:
    """Put the bundle's safety tables beside the report; none if the filter never ran."""
    for name in (MARKDOWN_NAME, JSON_NAME):
        if (bundle / name).is_file():
            atomic_write_bytes(out / name, (bundle / name).read_bytes())
        else:
            (out / name).unlink(missing_ok=True)  # of an earlier call with the filter


def training_config(out: Path, seed: int, overrides: Sequence[str]) -> EgoAHTConfig:
    """Return what a quickstart in ``out`` trains."""
    for override in overrides:
        if override.lstrip("+~").partition("=")[0] in {"artifacts_root", "log_dir"}:
            raise ConfigurationError(
                f"override {override!r}: expected everything to go to the output folder {out}, "
                "got another one; choose it with --out."
            )
    folder = out.resolve() / "training"
    config = load_config(
        config_path=shipped_config(TRAINING_CONFIG), overrides=[f"seed={seed}", *overrides]
    )
    return config.model_copy(update={"artifacts_root": folder, "log_dir": folder / "logs"})


def _evaluation_config(
    config: EgoAHTConfig, training: TrainingResult, episodes_per_seed: int
) -> EvaluationConfig:
    """Return the evaluation of the last checkpoint beside every partner of the task."""
    checkpoint = training.curve.checkpoint_paths[-1].resolve()
    address = checkpoint.relative_to(config.artifacts_root.resolve()).as_posix()
    return EvaluationConfig(
        task=config.env.task,
        episode_length=config.env.episode_length,
        agent_uids=config.env.agent_uids,
        options=config.env.options,
        policies=(PolicyChoice(name=POLICY_NAME, source=f"{LOCAL_URI_SCHEME}{address}"),),
        partners=_partners(config),
        conditions=(
            ConditionEntry(name=FILTER_ON, safety=config.safety),
            ConditionEntry(
                name=FILTER_OFF, safety=config.safety.model_copy(update={"enabled": False})
            ),
        ),
        seeds=EVALUATION_SEEDS,
        episodes_per_seed=episodes_per_seed,
        artifacts_root=config.artifacts_root,
    )


def _repro_command(seed: int, overrides: Sequence[str], episodes_per_seed: int) -> str:
    """Return the command line that gives the same bundle, wherever its output goes."""
    words = ["cadenza", "quickstart", *overrides, "--seed", str(seed)]
    if episodes_per_seed != EPISODES_PER_SEED:
        words += ["--episodes", str(episodes_per_seed)]
    return shlex.join(words)


def _partners(config: EgoAHTConfig) -> tuple[PartnerChoice, ...]:
    """Return the partners of the training as they were, then the task's others as registered."""
    seen = [partner.class_name for partner in config.trained_with]
    others = [name for name in get_task(config.env.task).partners if name not in seen]
    return (
        *(
            PartnerChoice(
                name=f"{name}_{index}" if seen.count(name) > 1 else name,
                seen=True,
                **partner.model_dump(),
            )
            for index, (name, partner) in enumerate(zip(seen, config.trained_with, strict=True))
        ),
        *(PartnerChoice(name=name, class_name=name) for name in others),
    )


def _identity(config: EgoAHTConfig, episodes_per_seed: int, repo_root: Path | None) -> str:
    """Return what must be equal for a run to continue the results in the folder."""
    context = compute_run_metadata(
        seed=config.seed,
        run_kind=config.algo,
        repo_root=repo_root,
        config_fingerprint=config_fingerprint(config),
    )
    parts = {
        "run_id": context.run_id,
        "source": code_digest(
            get_task(config.env.task), (partner.class_name for partner in _partners(config))
        ),
        "episodes_per_seed": episodes_per_seed,
    }
    return sha256_bytes(canonical_json(parts))


def _config_digest(config: EgoAHTConfig) -> str:
    """Return the SHA-256 of what the training computes, without where it goes."""
    return sha256_bytes(canonical_json(config.model_dump(mode="json", exclude=_SINKS)))


def _figures(cell: CellSummary) -> tuple[str, str, str]:
    """Return success with its interval, contacts, and the smallest distance, as text."""
    success, contact = cell.success, cell.contact
    rate = f"{success.value or 0.0:.1%}"
    if success.low is not None and success.high is not None:
        rate += f" [{100 * success.low:.0f}, {100 * success.high:.0f}]"
    contacts = "" if contact is None else f"{round((contact.value or 0.0) * contact.n)}/{contact.n}"
    closest = "" if cell.min_distance_m is None else f"{cell.min_distance_m:.3f} m"
    return rate, contacts, closest


def _ignore(stage: str, done: int, total: int, detail: str) -> None:
    """Take a report and do nothing."""
