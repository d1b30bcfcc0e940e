"""Everybody with everybody: the cross-play matrix of zoos, with an interval for every cell.

Cell (i, j): mean score of ego i beside partner j, success where the task has it, else the return;
             every cell plays the same starts. Trainings of one method that differ in their seed are
             one ego, and the clusters of its intervals; else the episodes' seeds are.
Played by:   the evaluation of `evaluation_run`: a killed matrix goes on, every row is sealed.
Order:       rows and columns by average-linkage clustering of what they score.
Axes:        I = egos, J = partners, M = episodes.
"""

import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import numpy as np

from cadenza.benchmark.cells import ConditionEntry, EvaluationPlan, PolicyChoice
from cadenza.benchmark.evaluation_run import (
    EvaluationConfig,
    EvaluationOutcome,
    PartnerChoice,
    run_evaluation,
)
from cadenza.benchmark.executor import JobProgress
from cadenza.benchmark.films import has_pictures
from cadenza.benchmark.policies import policy_names, saved_policies
from cadenza.benchmark.zoo.config import ZooConfig
from cadenza.core.arrays import FloatArray
from cadenza.core.checkpoints import LOCAL_URI_SCHEME
from cadenza.core.errors import ConfigurationError
from cadenza.core.extras import load_extra
from cadenza.core.files import atomic_write_json
from cadenza.core.tables import Table
from cadenza.evaluation.report.figures.methods import GridCell, grid
from cadenza.evaluation.report.svg import Figure, make_figure, score, score_interval
from cadenza.evaluation.report.view import MAX_CONDITIONS
from cadenza.evaluation.results import EpisodeResult
from cadenza.evaluation.statistics.cluster_means import StudentT
from cadenza.evaluation.statistics.estimate import (
    Estimate,
    group_by_seed,
    mean_estimate,
    rate_estimate,
)
from cadenza.partners.spec import PartnerSpec
from cadenza.partners.varied_body import VARIED_BODY
from cadenza.partners.zoo_manifest import Skill, ZooManifest, ZooMember, read_manifest
from cadenza.partners.zoo_member import ZOO_MEMBER

#: Seeds of a cell's episodes, and default of how many these are.
SEEDS: Final = 5
DEFAULT_EPISODES: Final = 50
#: The only condition of the evaluation.
CONDITION: Final = "plain"
#: Agents that a training with a folder saves there.
_AGENTS: Final = frozenset({"best", "last"})
#: Policies that `cadenza train --seeds` made: method and training seed.
_SEEDED: Final = re.compile(r"(.+)_seed(\d+)")
MATRIX_JSON: Final = "matrix.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooEntry:
    """A member and where its zoo is."""

    folder: Path
    member: ZooMember

    def spec(self, uid: str) -> PartnerSpec:
        """Return what to load, driving robot ``uid``."""
        member = self.member
        if member.class_name != ZOO_MEMBER:
            return PartnerSpec(member.class_name, 0, extra={**member.options, "uid": uid})
        return PartnerSpec(
            ZOO_MEMBER,
            member.seed,
            member.step,
            f"local://{member.file}",
            extra={"uid": uid, "root": str(self.folder)},
            weights_sha256=member.sha256,
        )


def open_zoos(folders: Sequence[Path]) -> tuple[ZooManifest, list[ZooEntry]]:
    """Return the first manifest and the members of all."""
    manifests = [read_manifest(folder) for folder in folders]
    first = manifests[0]
    for folder, manifest in zip(folders, manifests, strict=True):
        if manifest.task_sha256 != first.task_sha256:
            raise ConfigurationError(
                f"{folder}: expected a zoo of the task and settings of {folders[0]} "
                f"({first.task}, {first.episode_length} steps), got {manifest.task}, "
                f"{manifest.episode_length} steps."
            )
    entries = [
        ZooEntry(folder=folder, member=member)
        for folder, manifest in zip(folders, manifests, strict=True)
        for member in manifest.members
    ]
    names = [entry.member.name for entry in entries]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigurationError(
            f"zoos: expected distinct members, got {twice[0]!r} twice; train zoos of one method "
            "with different seeds."
        )
    return first, entries


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CrossPlay:
    """The matrix.

    Attributes:
        egos: Names of the rows, (I,): members, methods, and files by their stem or, if shared,
            path.
        partners: Members of the columns, (J,).
        skills: Cells, I rows of J.
        seeds: Of the episodes.
        row_order: Rows by clustering.
        column_order: Columns by clustering.
        judged: Rows that a report compares: the further egos, else the first ones.
        seen: Whether the egos may have trained with each partner, (J,).
        families: Names of the families of partners, F, and cells over each, I rows of F.
        plan: What was played.
        artifacts_root: Folder that the plan's addresses are relative to.
    """

    egos: tuple[str, ...]
    partners: tuple[ZooMember, ...]
    skills: tuple[tuple[Skill, ...], ...]
    seeds: tuple[int, ...]
    row_order: tuple[int, ...]
    column_order: tuple[int, ...]
    judged: tuple[str, ...]
    seen: tuple[bool, ...]
    families: Mapping[str, tuple[Skill, ...]]
    plan: EvaluationPlan
    artifacts_root: Path

    @property
    def values(self) -> FloatArray:
        """Mean scores, (I, J)."""
        return np.array([[skill.value for skill in row] for row in self.skills])

    def as_json(self) -> dict[str, Any]:
        """Return the matrix as JSON values."""
        return {
            "egos": list(self.egos),
            "policies": policies_of(self.plan),
            "partners": [
                {
                    "name": m.name,
                    "family": family_of(m),
                    "tier": m.tier,
                    "split": m.split,
                    "seen": seen,
                }
                for m, seen in zip(self.partners, self.seen, strict=True)
            ],
            "judged": list(self.judged),
            "families": {
                name: [skill.model_dump(mode="json") for skill in skills]
                for name, skills in self.families.items()
            },
            "cells": [[skill.model_dump(mode="json") for skill in row] for row in self.skills],
            "seeds": list(self.seeds),
            "row_order": list(self.row_order),
            "column_order": list(self.column_order),
        }


def family_of(member: ZooMember) -> str:
    """Return the family that a member is judged in: its method, or the class of a scripted one."""
    if member.class_name == ZOO_MEMBER:
        return member.family
    varied = member.class_name == VARIED_BODY
    return f"{member.options['partner']}, varied body" if varied else member.class_name


def cross_play(
    folders: Sequence[Path],
    *,
    out: Path,
    egos: Sequence[str | Path] = (),
    seen: Sequence[Path] = (),
    episodes: int = DEFAULT_EPISODES,
    seed: int = 0,
    workers: int | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: JobProgress | None = None,
) -> CrossPlay:
    """Play every ego with every member: an evaluation in ``out``, with a sealed bundle per ego.

    Args:
        folders: Zoos of one task; egos are their learned members as they were at the end.
        out: Folder of plan, cells and bundles.
        egos: Further egos: files or folders of any kind that `cadenza.benchmark.policies` reads,
            or names of built-in policies. The seeds of a training in a folder are one.
        seen: Zoos that the egos trained with; without any, they may have met every public member.
        episodes: M of every cell, a multiple of `SEEDS`.
        seed: Chooses the seeds of the episodes.
        workers: Processes; by default one per core.
        resume: Go on with the evaluation in ``out``.
        overwrite: Delete the evaluation in ``out`` first.
        progress: Called with (cells done, cells in all, the last one).

    Raises:
        IntegrityError: A manifest or member is not what was sealed.
        CheckpointError: Weights are missing, damaged or of another task.
        ConfigurationError: The zoos do not fit together, or there is no ego.
    """
    manifest, entries = open_zoos(folders)
    members, config = _evaluation(manifest, entries, folders, egos, seen, (episodes, seed))
    played = run_evaluation(
        config,
        out=out,
        workers=workers,
        resume=resume,
        overwrite=overwrite,
        repro_command="cadenza zoo matrix",
        progress=progress,
    )
    names = list(policies_of(played.plan))
    rows = [_skills(played, name, entries) for name in names]
    values = np.array([[skill.value for skill in cells] for cells, _ in rows])
    judged = [name for name in names if name not in members] or names
    return CrossPlay(
        egos=tuple(names),
        partners=tuple(entry.member for entry in entries),
        skills=tuple(tuple(cells) for cells, _ in rows),
        seeds=config.seeds,
        row_order=clustered(values),
        column_order=clustered(values.T),
        judged=tuple(judged[:MAX_CONDITIONS]),
        seen=tuple(entry.seen for entry in played.plan.partners),
        families={name: tuple(own[name] for _, own in rows) for name in rows[0][1]},
        plan=played.plan,
        artifacts_root=config.artifacts_root,
    )


def _evaluation(
    manifest: ZooManifest,
    entries: Sequence[ZooEntry],
    folders: Sequence[Path],
    egos: Sequence[str | Path],
    seen: Sequence[Path],
    count: tuple[int, int],
) -> tuple[set[str], EvaluationConfig]:
    """Return the rows that are members, and what is played: ``count`` episodes a cell, seed."""
    episodes, seed = count
    learned = [e for e in entries if e.member.class_name == ZOO_MEMBER and e.member.tier == "final"]
    policies = [
        PolicyChoice(name=e.member.name, source=str(e.folder / e.member.file)) for e in learned
    ]
    members = {choice.name for choice in policies}
    scripted = [str(ego) for ego in egos if not Path(ego).exists() and str(ego) in policy_names()]
    policies += _saved([Path(ego) for ego in egos if str(ego) not in scripted], members)
    if not (policies or scripted) or episodes < 1 or episodes % SEEDS:
        raise ConfigurationError(
            "zoo matrix: expected a learned member or --ego CHECKPOINT, and a multiple of "
            f"{SEEDS} episodes, got {len(policies) + len(scripted)} egos and {episodes}."
        )
    files = [Path(choice.source) for choice in policies]
    places = [Path(os.path.realpath(path)) for path in (*folders, *(f.parent for f in files))]
    root = Path(os.path.relpath(os.path.commonpath(places)))
    known = {folder.resolve() for folder in seen}
    unknown = known - {folder.resolve() for folder in folders}
    if unknown:
        raise ConfigurationError(
            f"zoo matrix: expected --seen among the zoos, got {min(unknown)}; name it there, too."
        )

    def is_seen(entry: ZooEntry) -> bool:
        return entry.folder.resolve() in known if known else entry.member.split == "public"

    def address(path: Path) -> str:
        return LOCAL_URI_SCHEME + Path(os.path.relpath(path.resolve(), root.resolve())).as_posix()

    pairs = zip(policies, files, strict=True)
    choices = [choice.model_copy(update={"source": address(file)}) for choice, file in pairs]
    choices += [PolicyChoice(name=name, source=name) for name in scripted]
    return members, EvaluationConfig(
        task=manifest.task,
        episode_length=settings_of(manifest, seed).horizon,
        options=manifest.options,
        policies=tuple(choices),
        partners=tuple(_partner(entry, address, is_seen(entry)) for entry in entries),
        conditions=(ConditionEntry(name=CONDITION),),
        seeds=tuple(range(seed * SEEDS, (seed + 1) * SEEDS)),
        episodes_per_seed=episodes // SEEDS,
        artifacts_root=root,
    )


def _saved(egos: Sequence[Path], taken: Iterable[str]) -> list[PolicyChoice]:
    """Return what is in egos' files, with their paths as sources.

    Each is called by its own name or, as an agent in a folder, by the folder's; seeds in a folder
    are their method's. Where another has the same name, the folder's comes first.
    """
    found: list[tuple[Path, Path, str, str | None]] = []
    for ego in egos:
        for file in saved_policies(ego):
            folder, name, seed = file.resolve().parent, file.stem.removesuffix(".policy"), None
            if file.name in _AGENTS:
                name = folder.name
            elif ego.is_dir() and (told := _SEEDED.fullmatch(name)):
                name, seed = told.groups()
                folder = folder.parent if folder.name == "policies" else folder
            found.append((file, folder, name, seed))
    owners = {(folder, name, file if seed is None else None) for file, folder, name, seed in found}
    known = [*taken, *(name for _, name, _ in owners)]
    choices: list[PolicyChoice] = []
    for file, folder, own, seed in found:
        name = own if known.count(own) == 1 else f"{folder.name}-{own}"
        choices.append(
            PolicyChoice(
                name=name if seed is None else f"{name}_seed{seed}",
                source=str(file),
                method=None if seed is None else name,
                training_seed=None if seed is None else int(seed),
            )
        )
    return choices


def policies_of(plan: EvaluationPlan) -> dict[str, list[str]]:
    """Return the policies of every ego: one, or those of a method's training seeds."""
    found: dict[str, list[str]] = {}
    for policy in plan.policies:
        found.setdefault(policy.method or policy.name, []).append(policy.name)
    return found


def cluster_of(plan: EvaluationPlan, policy: str) -> int | None:
    """Return the training seed of a policy if its method has several; None if episodes' count."""
    one = plan.policy(policy)
    return one.training_seed if len(policies_of(plan)[one.method or one.name]) > 1 else None


def _partner(entry: ZooEntry, address: Callable[[Path], str], seen: bool) -> PartnerChoice:
    """Return a member as a partner of an evaluation."""
    member = entry.member
    if member.class_name != ZOO_MEMBER:
        extra = {key: str(value) for key, value in member.options.items()}
        return PartnerChoice(name=member.name, class_name=member.class_name, extra=extra, seen=seen)
    return PartnerChoice(
        name=member.name,
        class_name=ZOO_MEMBER,
        seed=member.seed,
        checkpoint_step=member.step,
        weights_uri=address(entry.folder / member.file),
        seen=seen,
    )


def _skills(
    played: EvaluationOutcome, ego: str, entries: Sequence[ZooEntry]
) -> tuple[list[Skill], dict[str, Skill]]:
    """Return the cells of one ego by partner, and over each family of partners."""
    groups: dict[str, list[EpisodeResult]] = {}
    families: dict[str, list[EpisodeResult]] = {}
    family = {entry.member.name: family_of(entry.member) for entry in entries}
    for policy in policies_of(played.plan)[ego]:
        training = cluster_of(played.plan, policy)
        clustered = {} if training is None else {"seed": training}
        for episode in played.episodes[policy]:
            partner, own = episode.partner or "", episode.model_copy(update=clustered)
            groups.setdefault(partner, []).append(own)
            families.setdefault(family[partner], []).append(own)

    def skill(episodes: Sequence[EpisodeResult]) -> Skill:
        if played.has_success:
            found = rate_estimate(group_by_seed((e.seed, float(e.success)) for e in episodes))
        else:
            returns = group_by_seed((e.seed, e.episode_return or 0.0) for e in episodes)
            found = mean_estimate(returns, method=StudentT())
        return Skill(
            metric="success" if played.has_success else "return",
            value=cast("float", found.value),
            low=found.low,
            high=found.high,
            episodes=found.n,
        )

    cells = [skill(groups[entry.member.name]) for entry in entries]
    return cells, {name: skill(own) for name, own in families.items()}


def settings_of(manifest: ZooManifest, seed: int) -> ZooConfig:
    """Return how the members of a zoo are played."""
    return ZooConfig(
        method="scripted",
        task=manifest.task,
        episode_length=manifest.episode_length,
        options=manifest.options,
        seed=seed,
    )


def clustered(values: FloatArray) -> tuple[int, ...]:
    """Return the order of the rows of ``values`` by average-linkage clustering."""
    if len(values) < 3:
        return tuple(range(len(values)))
    hierarchy = load_extra("scipy.cluster.hierarchy")
    distances = load_extra("scipy.spatial.distance").pdist(values)
    tree = hierarchy.linkage(distances, method="average", optimal_ordering=True)
    return tuple(int(k) for k in hierarchy.leaves_list(tree))


def write_matrix(folder: Path, result: CrossPlay, diversity: Mapping[str, Any]) -> Path:
    """Write the matrix as JSON, the families' ``diversity`` in it."""
    path = folder / MATRIX_JSON
    root = os.path.relpath(result.artifacts_root, folder)
    content = {**result.as_json(), "diversity": dict(diversity), "artifacts_root": root}
    content["pictures"] = has_pictures(result.plan)
    atomic_write_json(path, content)
    return path


def diversity_table(diversity: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return how much the members of each family differ, by `family_diversity`."""

    def shown(told: Sequence[float] | None) -> str:
        return "-" if told is None else "{:.3f} [{:.3f}, {:.3f}]".format(*told)

    return Table(
        title="Diversity of the final members: Jensen-Shannon divergence, nats",
        columns=("family", "members", "divergence", "less that of fcp"),
        rows=tuple(
            (name, str(facts["members"]), shown(facts["jsd"]), shown(facts["minus_fcp"]))
            for name, facts in diversity.items()
        ),
    )


def matrix_figure(content: Mapping[str, Any], place: str = "MATRIX") -> Figure:
    """Return the matrix that `write_matrix` stored as a figure of a page, partners as rows.

    Each cell tells how to film an episode of it, ``place`` being the matrix's folder.

    Raises:
        ValueError: It is none; missing parts raise a LookupError.
    """
    skills = [[Skill.model_validate(cell) for cell in row] for row in content["cells"]]
    partners = [str(partner["name"]) for partner in content["partners"]]
    egos, order = [str(ego) for ego in content["egos"]], [int(i) for i in content["row_order"]]
    rate = skills[0][0].metric == "success"
    values = [skill.value for row in skills for skill in row]
    low, high = (0.0, 1.0) if rate else (min(values), max(values) + 1e-12)

    def cell(i: int, j: int) -> GridCell:
        skill = skills[i][j]
        ends = Estimate(
            value=skill.value,
            low=skill.low,
            high=skill.high,
            confidence=0.95,
            estimator="",
            n=skill.episodes,
            n_clusters=len(content["seeds"]),
        )
        share = (skill.value - low) / (high - low)
        tip = f"{egos[i]} with {partners[j]}: {film_command(content, place, egos[i], partners[j])}"
        return GridCell(score(skill.value, rate), score_interval(ends, rate), "heat", share, tip)

    rows = [(partners[j], [cell(i, j) for i in order]) for j in map(int, content["column_order"])]
    return make_figure(
        grid([egos[i] for i in order], rows),
        identity="cross-play",
        title=f"Cross-play: {'success' if rate else 'mean return'} of every ego with every partner",
        caption=f"{skills[0][0].episodes} episodes in each cell, its 95 % interval below; rows and "
        "columns by average-linkage clustering. Hover over a cell for the command that films it.",
        description=f"{len(egos)} egos, {len(partners)} partners",
    )


def partner_labels(content: Mapping[str, Any]) -> dict[str, str]:
    """Return what partners are called for people: the class of a scripted one that is alone."""
    told = {str(p["name"]): str(p.get("family", p["name"])) for p in content["partners"]}
    families = list(told.values())
    alone = {name for name in told if families.count(told[name]) == 1}
    return {
        name: family if name in alone and not name.startswith(family) else name
        for name, family in told.items()
    }


def film_command(content: Mapping[str, Any], place: str, ego: str, partner: str) -> str:
    """Return the command that films an episode of a cell, or writes it down without pictures."""
    ending = "gif" if content.get("pictures", True) else "json"
    policy = content.get("policies", {}).get(ego, [ego])[0]
    return f"cadenza zoo film {shlex.join([place, policy, partner])} --out film.{ending}"
