"""What a report shows of sealed results: bundles in, one `ReportView` out.

Method:    a policy; bundles that name one ``method`` and different training seeds are one method,
           whose clusters are then the training seeds, so that its intervals hold training luck.
One run:   a single method is shown under every condition, filtered against unfiltered.
Several:   methods are shown under the condition that their bundles headline; task, settings,
           partners and filter must be the same, or nobody could tell what a difference comes from.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Final

from pydantic import ValidationError

from cadenza.benchmark.admission import PLANS
from cadenza.benchmark.bundle import BUNDLE_NAME, PREREG_NAME, rehearsal_of
from cadenza.benchmark.cells import EvaluationPlan
from cadenza.benchmark.evaluation_run import BUNDLES_FOLDER
from cadenza.benchmark.safety_tables import safety_report
from cadenza.benchmark.tasks import get_task
from cadenza.benchmark.verify import ELIGIBILITY, BundleUnderTest, read_bundle_files, verify_files
from cadenza.core.errors import ConfigurationError, InputError, IntegrityError
from cadenza.core.tables import Table
from cadenza.evaluation.best_responses import BestResponses
from cadenza.evaluation.prereg import LockedRegistration, PreregDocument
from cadenza.evaluation.report.view import (
    RECORDINGS_NAME,
    Check,
    ConditionView,
    Fact,
    PartnerView,
    Recordings,
    ReportView,
    Statement,
)
from cadenza.evaluation.results import EpisodeResult, ResultBundle, first_problem
from cadenza.partners.registry import partner_card
from cadenza.partners.zoo_member import ZOO_MEMBER
from cadenza.safety.reporting.rendering import INTERVAL_NOTE, report_tables

#: Where bundles lie in the folder of an evaluation, of a quickstart, and of a spike.
_PLACES: Final = [f"{x}{BUNDLES_FOLDER}" for x in ("", "evaluation/", "1b/", "2/", "3/")]
#: Rows of baselines by what their policy is called; names that stand for a family match as
#: prefixes, the first one counts.
_BASELINES: Final = {
    "cocarry_reference": "REF-SCRIPT",
    "handover_reference": "REF-SCRIPT",
    "doorway_reference": "REF-SCRIPT",
    "random": "B-RND",
    "zero": "B-STAT",
    "happo_blind": "B-BLIND",
    "happo": "B-AHT",
    "joint": "B-JOINT",
}
#: What follows the family in the name of a zoo's member, ``behavior-s0-3`` or ``mep_2``.
_MEMBER: Final = re.compile(r"-s\d+-\d+(-\w+)?$|_[^_]*$")
#: A number with decimals.
_DECIMAL: Final = re.compile(r"\d+\.\d+(e[-+]\d+)?")


@dataclass(frozen=True, kw_only=True)
class SealedRun:
    """A bundle with its plan, its episodes in the order of their journals, and its checks.

    ``registered`` is a sentence about its registration; empty without one.
    """

    bundle: ResultBundle
    plan: EvaluationPlan
    episodes: tuple[EpisodeResult, ...]
    checks: tuple[Check, ...]
    registered: str = ""

    @property
    def method(self) -> str:
        """The method that was judged."""
        return str(self.bundle.metadata.get("method", self.bundle.policy_id))

    @property
    def training_seed(self) -> int | None:
        """The seed it was trained with, if the bundle says so."""
        seed = self.bundle.metadata.get("training_seed")
        return seed if isinstance(seed, int) else None

    @property
    def row_id(self) -> str:
        """The baseline that the policy is; empty for any other."""
        names = self.bundle.policy_id, self.plan.policy(self.bundle.policy_id).source
        return next((b for k, b in _BASELINES.items() for n in names if n.startswith(k)), "")


def find_bundles(paths: Sequence[Path]) -> list[Path]:
    """Return the bundle folders in ``paths``: bundles, folders of evaluations or of quickstarts.

    Raises:
        ConfigurationError: There is none in a path, or one is there twice.
    """
    found: list[Path] = []
    for path in paths:
        inside = [p.parent for place in _PLACES for p in path.glob(f"{place}/*/{BUNDLE_NAME}")]
        own = [path] if (path / BUNDLE_NAME).is_file() else sorted(inside)
        if not own:
            raise ConfigurationError(
                f"{path}: expected a bundle, or the folder of an evaluation, quickstart or spike "
                f"that holds some, got no {BUNDLE_NAME} in it."
            )
        found += own
    for folder in found:
        if sum(folder.samefile(other) for other in found) > 1:
            raise ConfigurationError(f"{folder}: expected every bundle once, got it twice.")
    return found


def load_run(folder: Path, *, repo_path: Path | None = None, strict: bool = False) -> SealedRun:
    """Read and check the bundle in ``folder``.

    Args:
        folder: Bundle folder.
        repo_path: Git repository that holds the registration tag, if there is one.
        strict: Refuse results of uncommitted sources too.

    Raises:
        IntegrityError: A check fails; without ``strict``, other than that of the sources.
        InputError: It is the rehearsal of a spike.
    """
    case, rows = verify_files(read_bundle_files(folder), repo_path=repo_path)
    return verified_run(case, rows, source=str(folder), accepted=() if strict else (ELIGIBILITY,))


def verified_run(
    case: BundleUnderTest | None, rows: Sequence[Check], *, source: str, accepted: Collection[str]
) -> SealedRun:
    """Return the run of a bundle by what `verify_files` said of it; errors as `load_run`.

    Checks whose names are ``accepted`` may fail.
    """
    failed = [r for r in rows if not r.ok and r.name not in accepted]
    if case is None or failed:
        raise IntegrityError(
            f"{source}: expected a bundle that verifies, got {failed[0].name}: {failed[0].detail}; "
            "`cadenza eval verify` shows all."
        )
    rehearsal = rehearsal_of(case.bundle)
    if rehearsal is not None:
        raise InputError(
            f"{source}: expected results that count, got {rehearsal}; it never reaches a table."
        )
    return SealedRun(
        bundle=case.bundle,
        plan=case.plan,
        episodes=tuple(e for episodes in case.episodes.values() for e in episodes),
        checks=tuple(rows),
        registered=_registered(case),
    )


def _registered(case: BundleUnderTest) -> str:
    """Return under which tag and rule the results were registered; empty if they were not."""
    tag = case.bundle.prereg_git_tag
    if tag is None:
        return ""
    if case.repo_path is None:
        return f"Said to be registered under the tag {tag}: no repository was found to check it in."
    spec = LockedRegistration(content=case.files[PREREG_NAME], git_tag=tag).protocol
    rule = f", with the rule: {spec.decision_rules}" if isinstance(spec, PreregDocument) else ""
    return f"Registered before it was run, under the tag {tag}{rule.rstrip('.')}."


def task_views(
    runs: Sequence[SealedRun], *, best_responses: BestResponses | None = None
) -> list[ReportView]:
    """Return one view of the methods of each task, with its settings and partners."""
    return [
        report_view(group, best_responses=best_responses, by_method=True)
        for group in comparable_runs(runs)
    ]


def newest_runs(runs: Iterable[SealedRun]) -> tuple[list[SealedRun], list[SealedRun]]:
    """Return, of runs newest first, one of each method and training seed of a task, and the rest.

    Two results of one method and seed cannot stand in one table.
    """
    kept: dict[str, SealedRun] = {}
    older = [
        run
        for run in runs
        if kept.setdefault(repr((_rules(run), run.method, run.training_seed)), run) is not run
    ]
    return [*kept.values()], older


def comparable_runs(runs: Sequence[SealedRun]) -> list[list[SealedRun]]:
    """Return the runs of each task, with its settings and partners."""
    groups: dict[str, list[SealedRun]] = {}
    for run in runs:
        groups.setdefault(repr(_rules(run)), []).append(run)
    return [*groups.values()]


def report_view(
    runs: Sequence[SealedRun],
    *,
    best_responses: BestResponses | None = None,
    by_method: bool = False,
) -> ReportView:
    """Return what a report shows of ``runs``, measured against best responses.

    With ``by_method`` a single method, too, is shown under its headline condition only.

    Raises:
        InputError: They cannot be compared, or one method is there twice.
        ConfigurationError: The best responses are about another task, or other partners.
    """
    methods = _methods(runs)
    first = runs[0]
    task = get_task(first.plan.env.task, first.plan.task_version)
    several, by_training = by_method or len(methods) > 1, _by_training(runs)
    played = {m: list(_played(m, group, several, by_training)) for m, group in methods.items()}
    methods = {
        name: methods[name]
        for name in sorted(methods, key=lambda m: _score(played[m], task.has_success), reverse=True)
    }
    episodes = tuple(e for name in methods for e in played[name])
    commands = {run.bundle.repro_command for run in runs}
    return ReportView(
        title=f"{len(methods)} methods on {task.slug}" if len(methods) > 1 else first.method,
        subtitle=task.summary,
        task=task.slug,
        statements=tuple(_statements(runs, methods, len(episodes))),
        compared="Method" if several else "Condition",
        provenance=tuple(f for run in runs for f in _provenance(run, several=len(runs) > 1)),
        verification=tuple(_checks(runs)),
        conditions=tuple(
            [_method_view(name, group) for name, group in methods.items()]
            if several
            else conditions_of(first)
        ),
        partners=tuple(
            partner_views(first.plan, trained=all(run.bundle.policy_sha256 for run in runs))
        ),
        episodes=episodes,
        has_success=task.has_success,
        ego_uid=first.plan.env.agent_uids[0],
        control_timestep_s=_timestep(episodes),
        best_responses=best_responses
        and best_responses.on(task.slug, [p.name for p in first.plan.partners]),
        stress_limit=_force_limit(task.task_id),
        tables=tuple(t for name, group in methods.items() for t in _safety(name, group, several)),
        repro_command=commands.pop() if len(commands) == 1 else "",
        seed_kind="training seed" if by_training else "evaluation seed",
    )


def with_recordings(
    view: ReportView, runs: Sequence[SealedRun], data: bytes
) -> tuple[ReportView, str]:
    """Return the view with the recorded episodes in ``data``, and the policy that they are of.

    Those of another policy, or without a place where methods are compared, are left out.

    Raises:
        IntegrityError: ``data`` holds none.
        InputError: One is incomplete, or there is more than a page can show.
    """
    try:
        found = Recordings.model_validate_json(data)
    except ValidationError as error:
        raise IntegrityError(
            f"{RECORDINGS_NAME}: expected recorded episodes: {first_problem(error)}; remove "
            "the file, or let `cadenza eval run --record` or `cadenza quickstart` write it."
        ) from error
    conditions = {one.condition_id for one in view.conditions}
    # where methods are compared, episodes of one with and without the filter have no place
    is_whole = all(one.condition_id in conditions for one in found.rollouts)
    is_of_a_run = found.policy_id in {run.bundle.policy_id for run in runs}
    return found.shown_in(view) if is_whole and is_of_a_run else view, found.policy_id


def _by_training(runs: Sequence[SealedRun]) -> bool:
    """Return whether training luck can be in the intervals: a method has several trainings."""
    trained = [run.method for run in runs if run.training_seed is not None]
    return len(set(trained)) < len(trained)


def _methods(runs: Sequence[SealedRun]) -> dict[str, list[SealedRun]]:
    """Return the runs by method, checked to be comparable."""
    methods: dict[str, list[SealedRun]] = {}
    for run in sorted(runs, key=lambda run: run.method):
        methods.setdefault(run.method, []).append(run)
        rules = zip(_rules(runs[0]).items(), _rules(run).values(), strict=True)
        different = [name for (name, one), other in rules if one != other]
        if different:
            raise InputError(
                f"{run.method}: expected the {different[0]} of {runs[0].method}, got another; "
                "compare what was played under the same rules."
            )
    for name, group in methods.items():
        seeds = [run.training_seed for run in group]
        if len(group) > 1 and (None in seeds or len(set(seeds)) < len(seeds)):
            raise InputError(
                f"{name}: expected one bundle per training seed, got {len(group)} with the seeds "
                f"{seeds}; leave out what is the same."
            )
    return methods


def _score(episodes: Sequence[EpisodeResult], has_success: bool) -> float:
    """Return the success rate or the mean return, by which methods are sorted."""
    return fmean(float(e.success) if has_success else e.episode_return or 0.0 for e in episodes)


def _rules(run: SealedRun) -> dict[str, object]:
    """Return what must be the same for runs to be compared."""
    plan, name = run.plan, run.bundle.summary.headline_condition
    return {
        "task": (plan.task_version, plan.env),
        "partners": run.bundle.partner_hashes,
        "condition": [c for c in plan.conditions if name in (None, c.name)],
    }


def _played(
    name: str, group: Sequence[SealedRun], several: bool, by_training: bool
) -> Iterator[EpisodeResult]:
    """Yield a method's episodes: with the training seed as cluster, the method as condition."""
    for run in group:
        headline = run.bundle.summary.headline_condition
        for episode in run.episodes:
            changes: dict[str, object] = {}
            if by_training and run.training_seed is not None:
                changes["seed"] = run.training_seed
            if several:
                changes["condition"] = name
            if not several or headline in (None, episode.condition):
                yield episode.model_copy(update=changes) if changes else episode


def conditions_of(run: SealedRun) -> Iterator[ConditionView]:
    """Yield the conditions of one run; a filter is not mentioned where none ran."""
    filters = {entry.safety.enabled for entry in run.plan.conditions}
    for entry in run.plan.conditions:
        filtered = entry.safety.enabled
        words = "with the filter" if filtered else "without the filter"
        if filters == {False}:
            words = "in plain play"
        yield ConditionView(
            condition_id=entry.name,
            label=words if len(filters) == len(run.plan.conditions) else entry.name,
            filtered=filtered,
            description="The safety filter may change the policy's action before it is executed."
            if filtered
            else "The policy's actions are executed unchanged.",
            row_id=run.row_id,
        )


def _method_view(name: str, group: Sequence[SealedRun]) -> ConditionView:
    run = group[0]
    headline = run.bundle.summary.headline_condition
    source = run.plan.policy(run.bundle.policy_id).source
    digests = ", ".join((r.bundle.policy_sha256 or "built in")[:12] for r in group)
    shown = f"; condition {headline or 'all'}" if len(run.plan.conditions) > 1 else ""
    return ConditionView(
        condition_id=name,
        label=name,
        filtered=any(c.safety.enabled for c in run.plan.conditions if c.name == headline),
        description=f"{source}, weights {digests}{shown}.",
        row_id=run.row_id,
    )


def partner_views(plan: EvaluationPlan, *, trained: bool = False) -> Iterator[PartnerView]:
    """Yield the partners of a plan, with their families, labels without a first word in common.

    Which were seen is known if the policies were ``trained`` and the plan marks any as seen.
    """
    known = trained and any(entry.seen for entry in plan.partners)
    first = plan.partners[0].name.partition("_")[0] + "_"
    shared = first if all(entry.name.startswith(first) for entry in plan.partners) else ""
    for entry in plan.partners:
        partner = entry.partner
        card = partner_card(partner.class_name)
        options = {k: v for k, v in partner.extra.items() if k not in ("uid", "root")}
        settings = ", ".join(f"{key} {value}" for key, value in options.items())
        yield PartnerView(
            partner_id=entry.name,
            label=entry.name.removeprefix(shared).replace("_", " "),
            seen=entry.seen if known else None,
            leaves_way=card.leaves_way,
            description=f"{card.summary} Played with {settings}." if settings else card.summary,
            family=_MEMBER.sub("", entry.name)
            if partner.class_name == ZOO_MEMBER
            else partner.class_name,
        )


def _statements(
    runs: Sequence[SealedRun], methods: dict[str, list[SealedRun]], n_episodes: int
) -> Iterator[Statement]:
    """Say what the numbers mean to a reader who knows none of the terms."""
    plan = runs[0].plan
    per_cell = plan.episodes_per_seed * len(plan.seeds)
    learned = [run for run in runs if run.bundle.policy_sha256 is not None]
    seeds = f"{len(plan.seeds)} seeds with {plan.episodes_per_seed} starts each"
    shown, played = f"{n_episodes} episodes", sum(len(run.episodes) for run in runs)
    if played > n_episodes:
        condition = runs[0].bundle.summary.headline_condition
        shown = f"Shown: condition {condition}, {n_episodes} of {played} episodes"
    yield Statement(
        kind="measured",
        text=f"{shown}: {per_cell} per policy, partner and condition "
        f"({seeds}). Every partner, method and condition gets the same starts, so they are "
        "compared pair by pair.",
    )
    for text in filter(None, dict.fromkeys(run.registered for run in runs)):
        yield Statement(kind="measured", text=text)
    for name, group in methods.items():
        text = _filter_statement(group)
        if text:
            lead = f"{name}: {text[0].lower()}{text[1:]}" if len(methods) > 1 else text
            yield Statement(kind="measured", text=lead)
    for name, group in methods.items():
        if len(group) == 1:
            continue
        trained = ", ".join(str(run.training_seed) for run in group)
        yield Statement(
            kind="measured",
            text=f"{name} was trained {len(group)} times, with the training seeds {trained}. They "
            "are the clusters of every interval: the luck of training is in it, and it speaks of "
            "seeds that nobody has trained.",
        )
    if learned and not _by_training(runs):
        who = "The ego" if len(methods) == 1 else "Every ego"
        yield Statement(
            kind="caution",
            text=f"{who} was trained once, with one training seed. The intervals cover the choice "
            "of starts, not the luck of training; train with further seeds before comparing "
            "methods.",
        )
    if any(run.bundle.dirty for run in runs):
        yield Statement(
            kind="caution",
            text="No clean commit stands behind these results: to repeat them you need the sources "
            "with the digest below.",
        )


def _filter_statement(group: Sequence[SealedRun]) -> str:
    """Say how often the filter's guarantee held, from the filtered episodes."""
    filtered = [e for run in group for e in run.episodes if e.uncertified_steps is not None]
    if not filtered:
        return ""
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


def _provenance(run: SealedRun, *, several: bool) -> Iterator[Fact]:
    bundle, plan = run.bundle, run.plan
    commit = bundle.git_sha + (" with local changes" if bundle.diff_sha256 else "")
    weights = bundle.policy_sha256 or "none, built in"
    if several:
        facts = f"commit {commit[:12]}, plan {plan.digest[:12]}, weights {weights[:12]}"
        trained = "" if run.training_seed is None else f", training seed {run.training_seed}"
        yield Fact(label=bundle.policy_id, value=facts + trained, code=True)
        return
    yield Fact(label="Commit", value=commit, code=True)
    yield Fact(label="Package", value=f"cadenza {bundle.package_version}")
    yield Fact(label="Policy weights, SHA-256", value=weights, code=True)
    yield Fact(label="Evaluation plan, SHA-256", value=plan.digest, code=True)
    yield Fact(label="Source code, SHA-256", value=plan.code_sha256, code=True)
    platform = bundle.platform
    yield Fact(label="Platform", value=f"{platform.os}, {platform.device}")
    versions = f"Python {platform.python}, numpy {platform.numpy}, torch {platform.torch}"
    yield Fact(label="Libraries", value=versions)
    failed = [f"{check.name}: {check.detail}" for check in run.checks if not check.ok]
    yield Fact(label="Bundle verification", value="; ".join(failed) or "every check passed")


def _checks(runs: Sequence[SealedRun]) -> Iterator[Check]:
    for run in runs:
        for check in run.checks:
            name = f"{run.bundle.policy_id}: {check.name}" if len(runs) > 1 else check.name
            yield Check(name=name, ok=check.ok, detail=check.detail)


def _safety(name: str, group: Sequence[SealedRun], several: bool) -> Iterator[Table]:
    """Yield the safety tables over all runs of a method; none if the filter never ran."""
    episodes = [episode for run in group for episode in run.episodes]
    report = safety_report(group[0].plan, episodes, solver_version=None)
    for table in () if report is None else report_tables(report):
        title = f"Safety{f' of {name}' if several else ''}, {table.title[0].lower()}"
        rows = tuple(tuple(_DECIMAL.sub(_shorter, cell) for cell in row) for row in table.rows)
        note = INTERVAL_NOTE if rows else table.caption
        yield replace(table, title=title + table.title[1:], rows=rows, caption=note)


def _shorter(found: re.Match[str]) -> str:
    """Return a number of the safety record with four significant digits."""
    return f"{float(found[0]):.4g}"


def _force_limit(task_id: str) -> float | None:
    """Return the peak force that the task allows, N, if it limits forces."""
    plan = PLANS.get(task_id)
    return None if plan is None else plan.limits().get("max_force")


def _timestep(episodes: Sequence[EpisodeResult]) -> float | None:
    """Return the length of a control step that the safety records agree on."""
    steps = {e.safety.control_timestep_s for e in episodes if e.safety is not None}
    return steps.pop() if len(steps) == 1 else None
