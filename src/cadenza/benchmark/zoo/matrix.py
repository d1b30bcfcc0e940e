"""Everybody with everybody: the cross-play matrix of zoos, with an interval for every cell.

Cell (i, j): mean score of ego i beside partner j, success where the task has it, else the return;
             every cell plays the same starts. Trainings of one method that differ in their seed are
             one ego, and the clusters of its intervals; else the episodes' seeds are.
Played by:   the evaluation of `evaluation_run`: a killed matrix goes on, every row is sealed.
Condition:   `AS_TRAINED`, everybody behind the safety filter that egos trained behind, if any did;
             else, or if it is asked for, `PLAIN`, nobody.
Seen:        what the policy files of an ego say, for those that say it; else guessed.
Order:       rows and columns by average-linkage clustering of what they score.
Axes:        I = egos, J = partners, M = episodes.
"""

import os
import re
import shlex
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast

import numpy as np
from pydantic import Field, ValidationError

from cadenza.benchmark.cells import ConditionEntry, PolicyChoice
from cadenza.benchmark.evaluation_run import (
    EvaluationConfig,
    EvaluationOutcome,
    PartnerChoice,
    run_evaluation,
)
from cadenza.benchmark.executor import JobProgress
from cadenza.benchmark.films import has_pictures
from cadenza.benchmark.output_folder import require_outside
from cadenza.benchmark.policies import (
    policy_names,
    saved_policies,
    trained_with,
    training_filter,
)
from cadenza.benchmark.zoo.config import ZooConfig
from cadenza.core.arrays import FloatArray
from cadenza.core.checkpoints import LOCAL_URI_SCHEME
from cadenza.core.errors import ConfigurationError, IntegrityError, refuse
from cadenza.core.extras import load_extra
from cadenza.core.strict_json import parse_sealed_json, write_sealed_json
from cadenza.core.tables import Table
from cadenza.evaluation.report.figures.methods import GridCell, grid
from cadenza.evaluation.report.svg import Figure, make_figure, score, score_interval
from cadenza.evaluation.report.view import MAX_CONDITIONS
from cadenza.evaluation.results import EpisodeResult, first_problem
from cadenza.evaluation.statistics.cluster_means import StudentT
from cadenza.evaluation.statistics.estimate import (
    Estimate,
    group_by_seed,
    mean_estimate,
    rate_estimate,
)
from cadenza.learn.settings import FrozenModel
from cadenza.partners.spec import PartnerSpec
from cadenza.partners.varied_body import VARIED_BODY
from cadenza.partners.zoo_manifest import (
    Skill,
    ZooManifest,
    ZooMember,
    read_manifest,
)
from cadenza.partners.zoo_member import ZOO_MEMBER

#: Seeds of a cell's episodes, and default of how many these are.
SEEDS: Final = 5
DEFAULT_EPISODES: Final = 50
#: The condition of the evaluation is one of them.
Condition: TypeAlias = Literal["as_trained", "plain"]
AS_TRAINED: Final[Condition] = "as_trained"
PLAIN: Final[Condition] = "plain"
#: Agents that a training with a folder saves there.
_AGENTS: Final = frozenset({"best", "last"})
#: Policies that `cadenza train --seeds` made: method and training seed.
_SEEDED: Final = re.compile(r"(.+)_seed(\d+)")
MATRIX_JSON: Final = "matrix.json"
_KIND: Final = "cross-play matrix"


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


def _setting(manifest: ZooManifest) -> str:
    """Return the task, episode length and options that members were trained in, for a message."""
    options = "".join(f", {name}={value}" for name, value in manifest.options.items())
    return f"{manifest.task}@v{manifest.task_version}, {manifest.episode_length} steps{options}"


def open_zoos(folders: Sequence[Path]) -> tuple[ZooManifest, list[ZooEntry]]:
    """Return the first manifest and the members of all."""
    manifests = [read_manifest(folder) for folder in folders]
    first = manifests[0]
    for folder, manifest in zip(folders, manifests, strict=True):
        if manifest.task_sha256 != first.task_sha256:
            raise ConfigurationError(
                f"{folder}: expected a zoo of the task and settings of {folders[0]} "
                f"({_setting(first)}), got {_setting(manifest)}; judge them in two matrices."
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


class Matrix(FrozenModel):
    """The matrix, as `MATRIX_JSON` holds it.

    Attributes:
        egos: Names of the rows, (I,): members, methods, and files by their stem or, if shared,
            path.
        policies: Those of each row: one, or one for each training seed.
        partners: Names of the columns, (J,).
        families: Family of each of them.
        judged: Rows that a report compares: the further egos, else the first ones.
        seen: Of judged egos the partners that they trained with.
        guessed: Those of them whose files do not say it; they may have met what ``seen`` names.
        condition: `AS_TRAINED` or `PLAIN`.
        guarded: Further egos that trained behind a safety filter.
        cells: I rows of J.
        by_family: Scores over the partners of each family, (I,).
        seeds: Of the episodes.
        row_order: Rows by clustering.
        column_order: Columns by clustering.
        artifacts_root: Folder that the plan's addresses are relative to, seen from the matrix's.
        pictures: Whether episodes can be drawn.
        diversity: How much the members of each family differ, see `selecting.family_diversity`.
    """

    egos: tuple[str, ...]
    policies: dict[str, tuple[str, ...]]
    partners: tuple[str, ...]
    families: tuple[str, ...]
    judged: tuple[str, ...]
    seen: dict[str, tuple[str, ...]]
    guessed: tuple[str, ...]
    condition: Condition
    guarded: tuple[str, ...]
    cells: tuple[tuple[Skill, ...], ...]
    by_family: dict[str, tuple[Skill, ...]]
    seeds: tuple[int, ...]
    row_order: tuple[int, ...]
    column_order: tuple[int, ...]
    artifacts_root: Path
    pictures: bool
    diversity: dict[str, dict[str, Any]] = Field(default_factory=dict[str, dict[str, Any]])

    @property
    def values(self) -> FloatArray:
        """Mean scores, (I, J)."""
        return np.array([[skill.value for skill in row] for row in self.cells])

    def estimate(self, ego: str, skill: Skill) -> Estimate:
        """Return a score of ``ego`` as reports show it."""
        trained = len(self.policies[ego])
        return Estimate(
            value=skill.value,
            low=skill.low,
            high=skill.high,
            confidence=0.95,
            estimator="",
            n=skill.episodes,
            n_clusters=trained if trained > 1 else len(self.seeds),
        )


def family_of(member: ZooMember) -> str:
    """Return the family that a member is judged in: its method, or the class of a scripted one."""
    if member.class_name == ZOO_MEMBER:
        return member.family
    varied = member.class_name == VARIED_BODY
    return f"{member.options['partner']}, varied body" if varied else member.class_name


class _Policy(NamedTuple):
    """What plays: its file, None for a built-in one, and of which method and training seed it is.

    Policies of one method are one ``row``.
    """

    name: str
    file: Path | None
    method: str | None = None
    training_seed: int | None = None

    @property
    def row(self) -> str:
        """Name of the ego."""
        return self.method or self.name


def cross_play(
    folders: Sequence[Path],
    *,
    out: Path,
    egos: Sequence[str | Path] = (),
    seen: Sequence[Path] = (),
    condition: Condition = AS_TRAINED,
    episodes: int = DEFAULT_EPISODES,
    seed: int = 0,
    workers: int | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: JobProgress | None = None,
    held: ExitStack | None = None,
) -> Matrix:
    """Play every ego with every member: an evaluation in ``out``, with a sealed bundle per ego.

    Args:
        folders: Zoos of one task; egos are their learned members as they were at the end.
        out: Folder of plan, cells and bundles.
        egos: Further egos: files or folders of any kind that `cadenza.benchmark.policies` reads,
            or names of built-in policies. The seeds of a training in a folder are one.
        seen: Zoos that egos trained with whose files do not say it; without any, these may have
            met every public member.
        condition: `AS_TRAINED` where an ego trained behind a filter, or `PLAIN`.
        episodes: M of every cell, a multiple of `SEEDS`.
        seed: Chooses the seeds of the episodes.
        workers: Processes; by default one per core.
        resume: Go on with the evaluation in ``out``.
        overwrite: Delete the evaluation in ``out`` first.
        progress: Called with (cells done, cells in all, the last one).
        held: See `run_evaluation`.

    Raises:
        IntegrityError: A manifest or member is not what was sealed.
        CheckpointError: Weights are missing, damaged or of another task.
        ConfigurationError: The zoos do not fit together, there is no ego, or egos trained behind
            different filters.
    """
    manifest, entries = open_zoos(folders)
    members = [
        _Policy(e.member.name, e.folder / e.member.file)
        for e in entries
        if e.member.class_name == ZOO_MEMBER and e.member.tier == "final"
    ]
    further = _further(egos, [one.name for one in members])
    policies = [*members, *further]
    if not policies:
        expected, do = "a learned final member, or an ego", "name one with --ego"
        refuse(ConfigurationError, "zoo matrix", expected=expected, got="neither", do=do)
    if episodes < 1 or episodes % SEEDS:
        expected = f"a multiple of {SEEDS}, as many of each seed"
        refuse(ConfigurationError, "--episodes", expected=expected, got=episodes)
    judged = tuple(dict.fromkeys(one.row for one in further or members))[:MAX_CONDITIONS]
    met, guessed = _seen([one for one in policies if one.row in judged], entries, seen)
    behind, guarded = _filter(further, condition)
    places = [*folders, *(one.file.parent for one in policies if one.file is not None)]
    if overwrite:
        require_outside(out, folders)  # of scripted zoos the evaluation reads no file
    root = Path(os.path.relpath(os.path.commonpath([*map(os.path.realpath, places)])))
    played = run_evaluation(
        _evaluation(
            manifest,
            entries,
            policies,
            known={name for names in met.values() for name in names},
            behind=behind,
            episodes=episodes,
            seed=seed,
            root=root,
        ),
        out=out,
        workers=workers,
        resume=resume,
        overwrite=overwrite,
        repro_command="cadenza zoo matrix",
        progress=progress,
        held=held,
    )
    partners = {entry.member.name: family_of(entry.member) for entry in entries}
    rows: dict[str, list[_Policy]] = {}
    for one in policies:
        rows.setdefault(one.row, []).append(one)
    groups = [_by_partner(played, own) for own in rows.values()]
    cells = [[_skill(played, own[name]) for name in partners] for own in groups]
    values = np.array([[skill.value for skill in row] for row in cells])
    return Matrix(
        egos=tuple(rows),
        policies={ego: tuple(one.name for one in own) for ego, own in rows.items()},
        partners=tuple(partners),
        families=tuple(partners.values()),
        judged=judged,
        seen=met,
        guessed=guessed,
        condition=AS_TRAINED if behind.safety.enabled else PLAIN,
        guarded=guarded,
        cells=tuple(map(tuple, cells)),
        by_family={
            family: tuple(
                _skill(
                    played, [e for name in partners if partners[name] == family for e in own[name]]
                )
                for own in groups
            )
            for family in dict.fromkeys(partners.values())
        },
        seeds=played.plan.seeds,
        row_order=clustered(values),
        column_order=clustered(values.T),
        artifacts_root=Path(os.path.relpath(root, out)),
        pictures=has_pictures(played.plan),
    )


def _evaluation(
    manifest: ZooManifest,
    entries: Sequence[ZooEntry],
    policies: Sequence[_Policy],
    *,
    known: Container[str],
    behind: ConditionEntry,
    episodes: int,
    seed: int,
    root: Path,
) -> EvaluationConfig:
    """Return the evaluation of every policy beside every entry; addresses are below ``root``."""

    def address(path: Path) -> str:
        return LOCAL_URI_SCHEME + Path(os.path.relpath(path.resolve(), root.resolve())).as_posix()

    return EvaluationConfig(
        task=manifest.task,
        episode_length=manifest.episode_length,
        options=manifest.options,
        policies=tuple(
            PolicyChoice(
                name=one.name,
                source=one.name if one.file is None else address(one.file),
                method=one.method,
                training_seed=one.training_seed,
            )
            for one in policies
        ),
        partners=tuple(_partner(e, address, e.member.name in known) for e in entries),
        conditions=(behind,),
        seeds=tuple(range(seed * SEEDS, (seed + 1) * SEEDS)),
        episodes_per_seed=episodes // SEEDS,
        artifacts_root=root,
    )


def _seen(
    policies: Sequence[_Policy], entries: Sequence[ZooEntry], told: Sequence[Path]
) -> tuple[dict[str, tuple[str, ...]], tuple[str, ...]]:
    """Return whom each ego trained with, and for which egos that is guessed.

    Guessed are the members of the zoos ``told``, or, without any, all public ones.
    """
    zoos = {folder.resolve() for folder in told}
    unknown = zoos - {entry.folder.resolve() for entry in entries}
    if unknown:
        raise ConfigurationError(
            f"zoo matrix: expected --seen among the zoos, got {min(unknown)}; name it there, too."
        )
    guess = {
        e.spec("partner").known_as
        for e in entries
        if (e.folder.resolve() in zoos if zoos else e.member.split == "public")
    }
    met: dict[str, set[str]] = {}
    guessed: list[str] = []
    for one in policies:
        found = () if one.file is None else trained_with(one.file)
        if found is None:
            guessed.append(one.row)
        met.setdefault(one.row, set()).update(guess if found is None else found)
    seen = {
        ego: tuple(e.member.name for e in entries if e.spec("partner").known_as in known)
        for ego, known in met.items()
    }
    return seen, tuple(dict.fromkeys(guessed))


def _filter(
    egos: Sequence[_Policy], condition: Condition
) -> tuple[ConditionEntry, tuple[str, ...]]:
    """Return the condition that is played, and the egos that trained behind a filter."""
    found = {one.row: training_filter(one.file) for one in egos if one.file is not None}
    guarded = [ego for ego, safety in found.items() if safety.enabled]
    if condition == PLAIN or not guarded:
        return ConditionEntry(name=PLAIN), tuple(guarded)
    behind = found[guarded[0]]
    others = [ego for ego in guarded if found[ego] != behind]
    if others:
        raise ConfigurationError(
            f"zoo matrix: expected egos that trained behind one filter, got {guarded[0]} and "
            f"{others[0]} behind two; judge them in two matrices, or with --condition plain."
        )
    return ConditionEntry(name=AS_TRAINED, safety=behind), tuple(guarded)


def _further(egos: Sequence[str | Path], taken: Iterable[str]) -> list[_Policy]:
    """Return the policies of further egos: those in files, then built-in ones.

    Each is called by its own name or, as an agent in a folder, by the folder's; seeds in a folder
    are their method's. Where another has the same name, the folder's comes first.
    """
    built_in = [str(e) for e in egos if not Path(e).exists() and str(e) in policy_names()]
    found: list[tuple[Path, Path, str, str | None]] = []
    for ego in (Path(ego) for ego in egos if str(ego) not in built_in):
        for file in saved_policies(ego):
            folder, name, seed = file.resolve().parent, file.stem.removesuffix(".policy"), None
            folder = folder.parent if folder.name == "policies" else folder
            if file.name in _AGENTS:
                name = folder.name
            elif ego.is_dir() and (told := _SEEDED.fullmatch(name)):
                name, seed = told.groups()
            found.append((file, folder, name, seed))
    owners = {(folder, name, file if seed is None else None) for file, folder, name, seed in found}
    known = [*taken, *(name for _, name, _ in owners)]
    policies, places = list[_Policy](), dict[str, Path]()
    for file, folder, own, seed in found:
        label = file.name if file.name in _AGENTS else own
        name = own if known.count(own) == 1 else f"{folder.name}-{label}"
        other = places.setdefault(name, place := file if seed is None else folder)
        if other != place:
            expected = "egos whose file or folder tells them apart"
            got, do = f"{other} and {place}, both {name!r}", "copy one under another name"
            refuse(ConfigurationError, "zoo matrix", expected=expected, got=got, do=do)
        policies.append(
            _Policy(name, file)
            if seed is None
            else _Policy(f"{name}_seed{seed}", file, name, int(seed))
        )
    return [*policies, *(_Policy(name, None) for name in built_in)]


def _partner(entry: ZooEntry, address: Callable[[Path], str], seen: bool) -> PartnerChoice:
    """Return a member as a partner of an evaluation."""
    member, weights = entry.member, dict[str, Any]()
    if member.class_name == ZOO_MEMBER:
        uri = address(entry.folder / member.file)
        weights |= {"seed": member.seed, "checkpoint_step": member.step, "weights_uri": uri}
    return PartnerChoice(
        name=member.name, class_name=member.class_name, extra=member.options, seen=seen, **weights
    )


def _by_partner(
    played: EvaluationOutcome, policies: Sequence[_Policy]
) -> dict[str, list[EpisodeResult]]:
    """Return the episodes of one ego, of the seed of its training if it has several."""
    groups: dict[str, list[EpisodeResult]] = {}
    for one in policies:
        clustered = {"seed": one.training_seed} if len(policies) > 1 else {}
        for episode in played.episodes[one.name]:
            own = episode.model_copy(update=clustered)
            groups.setdefault(episode.partner or "", []).append(own)
    return groups


def _skill(played: EvaluationOutcome, episodes: Sequence[EpisodeResult]) -> Skill:
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


def settings_of(manifest: ZooManifest, **own: Any) -> ZooConfig:
    """Return how the members of a zoo are played, with further settings."""
    return ZooConfig(
        method="scripted",
        task=manifest.task,
        episode_length=manifest.episode_length,
        options=manifest.options,
        **own,
    )


def clustered(values: FloatArray) -> tuple[int, ...]:
    """Return the order of the rows of ``values`` by average-linkage clustering."""
    if len(values) < 3:
        return tuple(range(len(values)))
    hierarchy = load_extra("scipy.cluster.hierarchy")
    distances = load_extra("scipy.spatial.distance").pdist(values)
    tree = hierarchy.linkage(distances, method="average", optimal_ordering=True)
    return tuple(int(k) for k in hierarchy.leaves_list(tree))


def write_matrix(folder: Path, matrix: Matrix) -> Path:
    """Seal the matrix into its folder."""
    path = folder / MATRIX_JSON
    write_sealed_json(path, matrix.model_dump(mode="json"), kind=_KIND)
    return path


def read_matrix(folder: Path) -> Matrix | None:
    """Return the matrix in a folder; None if it is not that of one.

    Raises:
        IntegrityError: It is not what was sealed.
    """
    path = folder / MATRIX_JSON
    return parse_matrix(path.read_bytes(), source=str(path)) if path.is_file() else None


def parse_matrix(data: bytes, *, source: str) -> Matrix:
    """Return the matrix in the bytes of a file; ``source`` is how messages call it.

    Raises:
        IntegrityError: It is not what was sealed.
    """
    try:
        return Matrix.model_validate(parse_sealed_json(data, source=source, kind=_KIND))
    except ValidationError as error:
        told = f"{source}: expected a matrix: {first_problem(error)}; play it again."
        raise IntegrityError(told) from error


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


def matrix_figure(matrix: Matrix, place: str = "MATRIX") -> Figure:
    """Return the matrix as a figure of a page, partners as rows.

    Each cell tells how to film an episode of it, ``place`` being the matrix's folder.
    """
    first = matrix.cells[0][0]
    rate = first.metric == "success"
    values = matrix.values
    low, high = (0.0, 1.0) if rate else (float(values.min()), float(values.max()) + 1e-12)

    def cell(i: int, j: int) -> GridCell:
        skill, ego, partner = matrix.cells[i][j], matrix.egos[i], matrix.partners[j]
        interval = score_interval(matrix.estimate(ego, skill), rate)
        share = (skill.value - low) / (high - low)
        tip = f"{ego} with {partner}: {film_command(matrix, place, ego, partner)}"
        return GridCell(score(skill.value, rate), interval, "heat", share, tip)

    order = matrix.row_order
    rows = [(matrix.partners[j], [cell(i, j) for i in order]) for j in matrix.column_order]
    return make_figure(
        grid([matrix.egos[i] for i in order], rows),
        identity="cross-play",
        title=f"Cross-play: {'success' if rate else 'mean return'} of every ego with every partner",
        caption=f"{first.episodes} episodes in each cell, condition {matrix.condition}, its 95 % "
        "interval below; rows and columns by average-linkage clustering. Hover over a cell for the "
        "command that films it.",
        description=f"{len(matrix.egos)} egos, {len(matrix.partners)} partners",
    )


def partner_labels(matrix: Matrix) -> dict[str, str]:
    """Return what partners are called for people: the class of a scripted one that is alone."""
    return {
        name: family if matrix.families.count(family) == 1 and not name.startswith(family) else name
        for name, family in zip(matrix.partners, matrix.families, strict=True)
    }


def film_command(matrix: Matrix, place: str, ego: str, partner: str) -> str:
    """Return the command that films an episode of a cell, or writes it down without pictures."""
    words = shlex.join([place, matrix.policies[ego][0], partner])
    return f"cadenza zoo film {words} --out film.{'gif' if matrix.pictures else 'json'}"
