"""What a page shows of results in a folder, as reports and verification see them, or why nothing.

Read:      no more than a page can bear; how files are read is the caller's matter.
Malformed: a damaged, half-written or foreign file gives a sentence, never an error.
"""

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from cadenza.benchmark.bundle import BUNDLE_NAME
from cadenza.benchmark.finding import Kind, Sources
from cadenza.benchmark.reporting import (
    SealedRun,
    comparable_runs,
    newest_runs,
    report_view,
    verified_run,
    with_recordings,
)
from cadenza.benchmark.signing import (
    ALLOWED_SIGNERS_NAME,
    SIGNATURE_NAME,
    bundle_root,
    read_allowed_signers,
    signed_by,
)
from cadenza.benchmark.spikes import gate
from cadenza.benchmark.training import read_training
from cadenza.benchmark.verify import (
    ELIGIBILITY,
    MALFORMED,
    REGISTRATION_TAG,
    BundleUnderTest,
    read_bundle_files,
    sentence,
    signature_rows,
    standing,
    verify_files,
)
from cadenza.benchmark.zoo.matrix import MATRIX_JSON, diversity_table, matrix_figure, parse_matrix
from cadenza.core.errors import InputError, IntegrityError
from cadenza.core.files import sha256_bytes
from cadenza.core.git import tag_object
from cadenza.core.recordings import read_journal
from cadenza.core.tables import Table
from cadenza.evaluation.report.analysis import analyse
from cadenza.evaluation.report.figures.episodes import learning_figures
from cadenza.evaluation.report.pages import StoryPage
from cadenza.evaluation.report.render import (
    compose,
    leaderboard_tables,
    method_figures,
    overall_score,
)
from cadenza.evaluation.report.svg import Figure
from cadenza.evaluation.report.view import Check, ReportView
from cadenza.evaluation.results import ResultBundle

#: Most bytes of all bundles of a page, and of a matrix.
MAX_BUNDLES_BYTES, MAX_MATRIX_BYTES = 1 << 26, 1 << 20
#: Verdicts on sound bundles by the digest of their bytes, as verifying takes most of the time.
_verdicts: OrderedDict[str, list[Check]] = OrderedDict()
_MAX_VERDICTS: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Badge:
    """Whether a bundle is what was sealed: ``state`` is good, warn or bad."""

    name: str
    state: str
    text: str
    signed: str
    checks: tuple[Check, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What a report says of bundles; ``problem`` says why nothing, ``no_player`` why no episode.

    ``recorded`` is the policy whose recorded episodes lie beside the bundles, and ``plays`` whether
    they are among what is shown.
    """

    badges: tuple[Badge, ...] = ()
    problem: str = ""
    no_player: str = ""
    recorded: str = ""
    plays: bool = False
    score: str = ""
    view: ReportView | None = None
    page: StoryPage | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """One part of a page of another kind; ``markdown`` is of the library, what is in it escaped.

    ``heading`` is for the whole page.
    """

    heading: str = ""
    title: str = ""
    problem: str = ""
    facts: tuple[tuple[str, str], ...] = ()
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()
    markdown: str = ""


def judge_all(folders: Sequence[Path], sources: Sources) -> tuple[float, tuple[Badge, ...]]:
    """Return now, and what verification says of every bundle, read anew, byte by byte."""
    moment = time.time()
    return moment, tuple(_judged(folder, sources, use_known=False)[0] for folder in folders)


def sealed_run(
    folder: Path, sources: Sources, *, strict: bool = False
) -> tuple[Badge, SealedRun | str]:
    """Return a bundle's badge and its results, or why they do not count.

    Bytes that were verified before in this process are not verified again.
    """
    badge, case = _judged(folder, sources, use_known=True)
    rows = [row for row in badge.checks if not row.name.startswith("signature")]
    unknown = [REGISTRATION_TAG] if case is not None and case.repo_path is None else []
    accepted = [] if strict else [ELIGIBILITY, *unknown]
    try:
        return badge, verified_run(case, rows, source=folder.name, accepted=accepted)
    except MALFORMED as error:
        return badge, sentence(error)


def _repository(folder: Path, bundle: bytes, sources: Sources) -> Path | None:
    """Return where the tag of a bundle's registration is looked up; None if nowhere known."""
    tag = None
    with suppress(*MALFORMED):  # a malformed bundle is told by verification
        tag = ResultBundle.model_validate_json(bundle).prereg_git_tag
    if sources.repo_root is not None or tag is None:
        return sources.repo_root
    for place in folder, Path():  # git looks there and above
        with suppress(IntegrityError):
            tag_object(place, tag)
            return place
    return None


def _judged(
    folder: Path, sources: Sources, *, use_known: bool
) -> tuple[Badge, BundleUnderTest | None]:
    own = (sources.repo_root or Path()) / ALLOWED_SIGNERS_NAME
    trusted = sources.allowed_signers or (own if own.is_file() else None)
    case, repository = None, None
    try:
        require_small([folder])
        signers = None if trusted is None else read_allowed_signers(trusted)
        files = read_bundle_files(folder)
        repository = _repository(folder, files[BUNDLE_NAME], sources)
        key = f"{bundle_root(files)} {signers} {sha256_bytes(files.get(SIGNATURE_NAME, b''))}"
        key += f" {repository}"
        rows = _verdicts.get(key) if use_known else None
        if rows is None:
            case, rows = verify_files(files, repo_path=repository)
            rows += [] if case is None else signature_rows(case, signers=signers)
            _verdicts.pop(key, None)
            if standing(rows, lacks_repository=repository is None)[0] != "bad":
                _verdicts[key] = rows
            while len(_verdicts) > _MAX_VERDICTS:
                _verdicts.popitem(last=False)
        else:
            bundle = ResultBundle.model_validate_json(files[BUNDLE_NAME])
            case = BundleUnderTest(bundle=bundle, files=files, repo_path=repository)
    except MALFORMED as error:
        rows = [Check(name="bundle", ok=False, detail=sentence(error))]
    state, text = standing(rows, lacks_repository=repository is None)
    signed = signed_by(rows)
    return Badge(name=folder.name, state=state, text=text, signed=signed, checks=tuple(rows)), case


def show(folders: Sequence[Path], recordings: Path | None, sources: Sources) -> Shown:
    """Return what a report says of the bundles in ``folders`` together."""
    found: list[tuple[Badge, SealedRun | str]] = []
    try:
        require_small(folders)
        found += (sealed_run(folder, sources) for folder in folders)
        problems = [run for _, run in found if isinstance(run, str)]
        if problems:
            raise InputError(problems[0])
        runs = [run for _, run in found if isinstance(run, SealedRun)]
        view, recorded, no_player = report_view(runs), "", ""
        try:
            if recordings is not None:
                view, recorded = with_recordings(view, runs, sources.read(recordings))
        except MALFORMED as error:
            no_player = sentence(error)
        numbers = analyse(view)
        page = compose(view, numbers)
    except MALFORMED as error:
        return Shown(badges=tuple(badge for badge, _ in found), problem=sentence(error))
    return Shown(
        badges=tuple(badge for badge, _ in found),
        no_player=no_player,
        recorded=recorded,
        plays=bool(view.rollouts),
        score=overall_score(view, numbers),
        view=view,
        page=page,
    )


def leaderboards(folders: Sequence[Path], sources: Sources) -> list[Sheet]:
    """Return a board per task with its settings, and what is left out; ``folders`` newest first."""
    require_small(folders)
    found = [(folder.name, sealed_run(folder, sources, strict=True)[1]) for folder in folders]
    left_out = [(name, run) for name, run in found if isinstance(run, str)]
    kept, older = newest_runs(run for _, run in found if isinstance(run, SealedRun))
    left_out += [(x.bundle.policy_id, "there is a newer result of this method") for x in older]
    boards = [one for group in comparable_runs(kept) for one in _sheets(partial(_board, group))]
    return [*boards, Sheet(title="Left out", facts=tuple(left_out))] if left_out else boards


def _board(runs: list[SealedRun]) -> list[Sheet]:
    view = report_view(runs, by_method=True)
    numbers = analyse(view)
    figures = tuple(one for one in method_figures(view, numbers) if one is not None)
    tables = tuple(leaderboard_tables(view, numbers))
    title = view.title if view.task in view.title else f"{view.title} on {view.task}"
    return [Sheet(title=title, tables=tables, figures=figures)]


def trainings(cards: Sequence[Path], sources: Sources) -> list[Sheet]:
    """Return the curves of runs that differ in their seed alone, and how each stands."""
    found = [read_training(card, read=sources.read) for card in cards]
    facts = [(f"{one.curve.label}, run {one.run_id}", one.standing) for one in found]
    figures = tuple(learning_figures([one.curve for one in found]))
    facts += [] if figures else [("curve", "none yet: no episode has ended")]
    heading = f"{found[0].what}, {', '.join(one.curve.label for one in found)}" if found else ""
    return [Sheet(heading=heading, facts=tuple(facts), figures=figures)]


def matrix(folders: Sequence[Path], sources: Sources) -> list[Sheet]:
    """Return the cross-play matrix in a folder."""
    data = sources.read(folders[0] / MATRIX_JSON)
    if len(data) > MAX_MATRIX_BYTES:
        raise InputError(f"{MATRIX_JSON}: expected at most {MAX_MATRIX_BYTES} bytes, got more.")
    found = parse_matrix(data, source=MATRIX_JSON)
    tables = (diversity_table(found.diversity),) if found.diversity else ()
    return [Sheet(figures=(matrix_figure(found),), tables=tables)]


def spike(folders: Sequence[Path], sources: Sources) -> list[Sheet]:
    """Return what `cadenza spike summarise` says of the bundles of a spike."""
    require_small(folders)
    spikes, damaged = list[gate.Spike](), dict[Path, str]()
    for folder in folders:
        repository = _repository(folder, sources.read(folder / BUNDLE_NAME), sources)
        found, unverified = gate.read_spikes([folder], repo_path=repository)
        spikes += found
        damaged |= unverified
    return [Sheet(markdown=gate.summary_text(spikes, damaged))]


def recording(folders: Sequence[Path], _: Sources) -> list[Sheet]:
    """Return what a recording of a stream holds, by its sealed journal."""
    require_small(folders)
    kinds = Counter(str(one["kind"]) for one in read_journal(folders[0], allow_unfinished=True))
    state = "whole: every line fits the seal of the one before" if kinds["end"] else "not ended"
    counts = ("episodes", str(kinds["episode"])), ("draws", str(kinds["draw"]))
    return [Sheet(facts=(("journal", state), *counts))]


#: What computes the parts of a page, by kind, from the files or folders that it is about.
SHEETS: Final[dict[Kind, Callable[[Sequence[Path], Sources], list[Sheet]]]] = {
    "training": trainings,
    "seeds": trainings,
    "matrix": matrix,
    "spike": spike,
    "recording": recording,
}


def sheets(kind: Kind | None, paths: Sequence[Path], sources: Sources) -> list[Sheet]:
    """Return the parts of a page, of the leaderboard without a kind; or one with what is wrong."""
    return _sheets(lambda: (SHEETS[kind] if kind else leaderboards)(paths, sources))


def _sheets(compute: Callable[[], list[Sheet]]) -> list[Sheet]:
    try:
        return compute()
    except MALFORMED as error:
        return [Sheet(problem=sentence(error))]


def require_small(folders: Iterable[Path]) -> None:
    """Raise if folders hold more than a page can bear.

    Raises:
        InputError: They do.
        OSError: One cannot be listed.
    """
    left = MAX_BUNDLES_BYTES
    for folder in folders:
        for file in folder.iterdir():
            left -= file.lstat().st_size
            if left < 0:
                raise InputError(
                    f"{folder.name}: expected at most {MAX_BUNDLES_BYTES >> 20} MB for a page, got "
                    "more; `cadenza eval verify` and `cadenza report` read it."
                )
