"""What the quickstart's report shows: numbers from the bundle, replays, and honest statements."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from cadenza.aht.config import EgoAHTConfig
from cadenza.aht.types import RewardCurve
from cadenza.benchmark.cell_runner import CellRunner
from cadenza.benchmark.cells import Cell, EvaluationPlan
from cadenza.benchmark.check_rows import CheckResult
from cadenza.benchmark.evaluation_run import EvaluationOutcome
from cadenza.benchmark.safety_tables import safety_report, solver_version_of
from cadenza.benchmark.tasks import get_task
from cadenza.envs.crossing import CONTACT_DISTANCE, ROBOT_RADIUS
from cadenza.envs.crossing_motion import CONTROL_TIMESTEP
from cadenza.evaluation.report.view import (
    Check,
    ConditionView,
    EvaluationPoint,
    Fact,
    LearningCurve,
    PartnerView,
    ReportView,
    Rollout,
    Statement,
    Table,
)
from cadenza.evaluation.results import EpisodeResult, ResultBundle
from cadenza.partners.registry import partner_card
from cadenza.safety.reporting.tables import INTERVAL_NOTE, report_tables

#: Episodes in the moving mean of the learning curve.
_LEARNING_WINDOW: Final = 50


@dataclass(frozen=True, kw_only=True)
class QuickstartRun:
    """Everything a quickstart produced, as the report reads it.

    Attributes:
        config: Training configuration.
        curve: Training run.
        evaluation: Evaluation run.
        policy: Name of the trained policy.
        bundle: Its bundle.
        checks: Verification of the bundle.
        folder: Output folder of the evaluation.
    """

    config: EgoAHTConfig
    curve: RewardCurve
    evaluation: EvaluationOutcome
    policy: str
    bundle: ResultBundle
    checks: Sequence[CheckResult]
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
    task = get_task(run.plan.env.task, run.plan.task_version)
    return ReportView(
        title="An ego robot meets partners it has never met",
        subtitle=task.summary,
        task=f"{task.task_id}@v{task.version}",
        statements=tuple(_statements(run)),
        provenance=tuple(_provenance(run)),
        verification=tuple(Check(name=c.name, ok=c.ok, detail=c.detail) for c in run.checks),
        conditions=tuple(_conditions(run)),
        partners=tuple(_partners(run)),
        episodes=run.episodes,
        has_success=task.has_success,
        success_meaning="the ego reached its goal in time and touched nobody",
        contact_distance_m=CONTACT_DISTANCE,
        ego_uid=run.plan.env.agent_uids[0],
        learning=_learning(run),
        rollouts=tuple(_rollouts(run)),
        tables=(*_safety_tables(run), *_settings(run)),
        repro_command=run.bundle.repro_command,
    )


def _conditions(run: QuickstartRun) -> Iterator[ConditionView]:
    for entry in run.plan.conditions:
        filtered = entry.safety.enabled
        yield ConditionView(
            condition_id=entry.name,
            label="with filter" if filtered else "without filter",
            filtered=filtered,
            description="The safety filter may change the policy's action before it is executed."
            if filtered
            else "The same policy; its actions are executed as they are.",
        )


def _partners(run: QuickstartRun) -> Iterator[PartnerView]:
    for entry, (name, seen, leaves_way) in zip(run.plan.partners, run.partners, strict=True):
        summary = partner_card(entry.partner.class_name).summary
        options = {k: v for k, v in entry.partner.extra.items() if k != "uid"}
        settings = ", ".join(f"{key} {value}" for key, value in options.items())
        yield PartnerView(
            partner_id=name,
            label=_label(run, name),
            seen=seen,
            leaves_way=leaves_way,
            description=f"{summary} Played with {settings}." if settings else summary,
        )


def _label(run: QuickstartRun, partner: str) -> str:
    """Return the partner's name without the task's."""
    return partner.removeprefix(f"{run.plan.env.task}_").replace("_", " ")


def _statements(run: QuickstartRun) -> Iterator[Statement]:
    """Say what the numbers mean to a reader who knows none of the terms."""
    plan = run.plan
    per_cell = plan.episodes_per_seed * len(plan.seeds)
    hunters = [_label(run, name) for name, _, way in run.partners if not way]
    yield Statement(
        kind="measured",
        text=f"{len(run.episodes)} episodes: {per_cell} per partner and condition "
        f"({len(plan.seeds)} seeds with {plan.episodes_per_seed} starts each). Every partner and "
        "both conditions meet the same starts, so differences are differences within pairs.",
    )
    yield Statement(kind="measured", text=_filter_statement(run))
    yield Statement(
        kind="caution",
        text="The ego was trained once, with one training seed. The intervals cover the choice of "
        "starts, not the luck of training; train with further seeds before comparing methods.",
    )
    if hunters:
        yield Statement(
            kind="caution",
            text="Some partners need not leave the ego any way to its goal "
            f"({', '.join(hunters)}): beside them the filter owes it safety, not success.",
        )
    yield Statement(
        kind="caution",
        text="The filter's certificate covers the ego beside one partner that keeps within its "
        "declared acceleration bound, for discs of known size, exact positions and velocities, and "
        "accelerations held over each control step. Several partners at once can leave no action "
        "that satisfies every constraint; such steps are counted above. It says nothing about "
        "partners among themselves, and nothing once a bound is exceeded.",
    )
    if run.bundle.dirty:
        yield Statement(
            kind="caution",
            text="No clean commit stands behind these results: who repeats them needs sources of "
            "the digest below.",
        )
    yield Statement(
        kind="not_measured",
        text="Sensor noise, delays, lost messages, other robot shapes and real hardware.",
    )


def _filter_statement(run: QuickstartRun) -> str:
    """Say how often the filter's guarantee held, from the filtered episodes."""
    filtered = [e for e in run.episodes if e.uncertified_steps is not None]
    steps = sum(e.n_steps or 0 for e in filtered)
    uncertified = sum(e.uncertified_steps or 0 for e in filtered)
    infeasible = sum(e.infeasible_steps or 0 for e in filtered)
    braked = sum(e.fallback_fired for e in filtered)
    contacts = sum(bool(e.contact) for e in filtered)
    return (
        f"With the filter, {contacts} of {len(filtered)} episodes had a contact. On {uncertified} "
        f"of {steps} control steps the filter worked outside its certificate, on {infeasible} no "
        f"action met every constraint, and on {braked} it braked."
    )


def _provenance(run: QuickstartRun) -> Iterator[Fact]:
    bundle, plan = run.bundle, run.plan
    commit = bundle.git_sha + (" with local changes" if bundle.diff_sha256 else "")
    yield Fact(label="Commit", value=commit, code=True)
    yield Fact(label="Package", value=f"cadenza {bundle.package_version}")
    yield Fact(label="Training run", value=run.curve.run_id, code=True)
    yield Fact(label="Policy weights, SHA-256", value=bundle.policy_sha256 or "", code=True)
    yield Fact(label="Evaluation plan, SHA-256", value=plan.digest, code=True)
    yield Fact(label="Source code, SHA-256", value=plan.code_sha256, code=True)
    platform = bundle.platform
    yield Fact(label="Platform", value=f"{platform.os}, {platform.device}")
    versions = f"Python {platform.python}, numpy {platform.numpy}, torch {platform.torch}"
    yield Fact(label="Libraries", value=versions)
    failed = [f"{check.name}: {check.detail}" for check in run.checks if not check.ok]
    yield Fact(label="Bundle verification", value="; ".join(failed) or "every check passed")


def _learning(run: QuickstartRun) -> LearningCurve:
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
    seen = ", ".join(_label(run, name) for name, seen, _ in run.partners if seen)
    return LearningCurve(
        steps=tuple(episode.end_frame for episode in complete),
        returns=tuple(episode.episode_return for episode in complete),
        window=_LEARNING_WINDOW,
        evaluations=tuple(points),
        label=f"training seed {run.config.seed}, partner {seen}, filter "
        + ("on" if run.config.safety.enabled else "off"),
    )


def _rollouts(run: QuickstartRun) -> Iterator[Rollout]:
    """Replay one start per partner under every condition."""
    runner = CellRunner(plan=run.plan, folder=run.folder, artifacts_root=run.config.artifacts_root)
    for name, _, _ in run.partners:
        seed, episode = _telling_start(run, name)
        for condition in run.plan.conditions:
            cell = next(
                cell
                for cell in run.plan.cells.values()
                if (cell.policy, cell.partner, cell.condition, cell.seed)
                == (run.policy, name, condition.name, seed)
            )
            yield _replay(runner, cell, episode)


def _telling_start(run: QuickstartRun, partner: str) -> tuple[int, int]:
    """Return (seed, episode) of the start to show: the first where the filter decides.

    That is one with contact without the filter and success with it; else one with any contact;
    else the first of all. Choosing by outcome makes it an example, not a sample.
    """
    groups: dict[tuple[int, int], list[EpisodeResult]] = {}
    offset = [name for name, _, _ in run.partners].index(partner) * run.plan.episodes_per_seed
    for result in run.episodes:
        if result.partner == partner:
            groups.setdefault((result.seed, result.episode_idx - offset), []).append(result)

    def interest(start: tuple[int, int]) -> int:
        contact = any(result.contact for result in groups[start])
        success = any(result.success for result in groups[start])
        return 2 * contact + (contact and success)

    return max(groups, key=interest)  # the first among equals


def _replay(runner: CellRunner, cell: Cell, episode: int) -> Rollout:
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
        interventions=trajectory.interventions,
    )


def _safety_tables(run: QuickstartRun) -> Iterator[Table]:
    """Yield the tables of ``three_tables.md``; none if the filter never ran."""
    report = safety_report(run.plan, run.episodes, solver_version=solver_version_of(run.plan))
    if report is None:
        return
    for table in report_tables(report):
        yield Table(
            title=f"Safety, {table.title[0].lower()}{table.title[1:]}",
            columns=table.header,
            rows=table.rows,
            caption=INTERVAL_NOTE if table.rows else table.empty,
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
