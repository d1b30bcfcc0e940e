"""What the pages of results show, computed by the library that reports and verifies them.

Read:      files below the folder of all runs, as large as a page can bear.
Malformed: a damaged, half-written or foreign file gives a sentence, never an error of the page.
Cost:      seconds; imports the benchmark. Pages call this in threads of their own.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cadenza.benchmark.reporting import SealedRun, comparable_runs, report_view, verified_run
from cadenza.benchmark.signing import ALLOWED_SIGNERS_NAME
from cadenza.benchmark.verify import (
    ELIGIBILITY,
    MALFORMED,
    BundleUnderTest,
    all_ok,
    examine_bundle_dir,
)
from cadenza.core.errors import InputError
from cadenza.core.tables import Table
from cadenza.evaluation.report.analysis import analyse
from cadenza.evaluation.report.figures.outcomes import Figure
from cadenza.evaluation.report.render import (
    Page,
    Tile,
    compose,
    headline_tiles,
    leaderboard_tables,
    method_figures,
)
from cadenza.evaluation.report.view import Check, Recordings, ReportView
from cadenza.web.site import open_inside

#: Most bytes of all bundles, and of one file of another kind, that a page reads.
MAX_BUNDLES_BYTES, MAX_FILE_BYTES = 1 << 27, 1 << 25
#: Longest sentence about what is malformed, characters.
_MAX_SENTENCE: Final = 600


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
    """What a report says of bundles; ``problem`` says why nothing, ``no_player`` why no episode."""

    badges: tuple[Badge, ...] = ()
    problem: str = ""
    no_player: str = ""
    view: ReportView | None = None
    page: Page | None = None
    tiles: tuple[Tile, ...] = ()


def judge(folder: Path) -> tuple[Badge, BundleUnderTest | None]:
    """Return a bundle and what verification says of it, read anew byte by byte.

    Tags and trusted keys are those of the repository that the dashboard was started in.
    """
    signers = Path(ALLOWED_SIGNERS_NAME)
    case = None
    try:
        require_small([folder])
        case, rows = examine_bundle_dir(
            folder, repo_path=Path(), allowed_signers=signers if signers.is_file() else None
        )
    except MALFORMED as error:
        rows = [Check(name="bundle", ok=False, detail=sentence(error))]
    failed = [row for row in rows if not row.ok]
    state, text = "good", f"Sealed and verified: {len(rows)} checks passed"
    if failed and all(row.name == ELIGIBILITY for row in failed):
        state, text = "warn", "Sealed and verified, but not of a clean commit"
    elif failed:
        state, text = "bad", f"Does not verify: {len(failed)} of {len(rows)} checks failed"
    badge = Badge(
        name=folder.name, state=state, text=text, signed=_signed(rows), checks=tuple(rows)
    )
    return badge, case


def _signed(rows: Sequence[Check]) -> str:
    """Return who vouches for a bundle."""
    found = {row.name: row for row in rows if row.name.startswith("signature")}
    if not found or "signature:absent" in found:
        return "not signed"
    if not all_ok([row for name, row in found.items() if name != "signature:signer"]):
        return "its signature does not fit"
    if "signature:signer" in found:
        return f"signed by {found['signature:signer'].detail}"
    return f"signed with {found['signature:valid'].detail}; there is no list of trusted keys here"


def sealed_run(folder: Path, *, strict: bool = False) -> tuple[Badge, SealedRun | str]:
    """Return a bundle's badge and its results, or why they do not count."""
    badge, case = judge(folder)
    rows = [row for row in badge.checks if not row.name.startswith("signature")]
    try:
        return badge, verified_run(case, rows, source=folder.name, strict=strict)
    except MALFORMED as error:
        return badge, sentence(error)


def show(folders: Sequence[Path], recordings: Path | None = None) -> Shown:
    """Return what a report says of the bundles in ``folders`` together."""
    badges: list[Badge] = []
    try:
        require_small(folders)
        runs: list[SealedRun] = []
        for folder in folders:
            badge, run = sealed_run(folder)
            badges.append(badge)
            if isinstance(run, str):
                return Shown(badges=tuple(badges), problem=run)
            runs.append(run)
        view = report_view(runs)
        view, no_player = _with_recordings(view, runs, recordings)
        page = compose(view)
        tiles = headline_tiles(view, page.numbers)
    except MALFORMED as error:
        return Shown(badges=tuple(badges), problem=sentence(error))
    return Shown(badges=tuple(badges), no_player=no_player, view=view, page=page, tiles=tiles)


def _with_recordings(
    view: ReportView, runs: Sequence[SealedRun], path: Path | None
) -> tuple[ReportView, str]:
    """Return the view with the recorded episodes of one of the runs, or why without."""
    if path is None:
        return view, ""
    try:
        found = Recordings.model_validate_json(read_small(path))
        conditions = {one.condition_id for one in view.conditions}
        is_whole = all(one.condition_id in conditions for one in found.rollouts)
        # where methods are compared, episodes of one with and without the filter have no place
        if is_whole and found.policy_id in {run.bundle.policy_id for run in runs}:
            view = found.shown_in(view)
    except MALFORMED as error:
        return view, f"{path.name}: {sentence(error)}"
    return view, ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """The leaderboard of one task, with its settings and partners, or why there is none."""

    title: str
    problem: str = ""
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()


def leaderboards(folders: Sequence[Path]) -> tuple[list[Board], list[tuple[str, str]]]:
    """Return a board per task, and what is left out with the reason; ``folders`` newest first.

    Of one method and training seed the newest result stands for all.
    """
    left_out: list[tuple[str, str]] = []
    runs: dict[tuple[str, str, int | None], SealedRun] = {}
    boards: list[Board] = []
    try:
        require_small(folders)
        for folder in folders:
            _, run = sealed_run(folder, strict=True)
            if isinstance(run, str):
                left_out.append((folder.name, run))
                continue
            key = repr(run.plan.env), run.method, run.training_seed
            if key in runs:
                left_out.append((folder.name, "there is a newer result of the same method"))
            runs.setdefault(key, run)
    except MALFORMED as error:
        left_out.append(("all", sentence(error)))
    for group in comparable_runs([*runs.values()]):
        title = f"{group[0].plan.env.task}: {len(group)} results"
        try:
            view = report_view(group, by_method=True)
            numbers = analyse(view)
            tables = leaderboard_tables(view, numbers)
            figures = [one for one in method_figures(view, numbers) if one is not None]
            boards.append(Board(title=title, tables=tuple(tables), figures=tuple(figures)))
        except MALFORMED as error:
            boards.append(Board(title=title, problem=sentence(error)))
    return boards, left_out


def require_small(folders: Iterable[Path]) -> None:
    """Raise if bundles are too large for a page.

    Raises:
        InputError: They are.
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


def read_small(path: Path) -> bytes:
    """Return the bytes of a file that a page can bear.

    Raises:
        InputError: It is larger.
        StorageError: It cannot be read, or is a link that leads elsewhere.
    """
    with open_inside(path.parent, path.name) as file:
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise InputError(f"{path.name}: expected at most {MAX_FILE_BYTES >> 20} MB, got more.")
    return data


def sentence(error: BaseException) -> str:
    """Return what is wrong with a file, on one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, (LookupError, TypeError, AttributeError)):
        text = f"malformed: {type(error).__name__}: {text}"
    return text if len(text) <= _MAX_SENTENCE else f"{text[:_MAX_SENTENCE]}…"
