"""Verification of a result bundle: one row per check, never a traceback.

Bytes:    the files are read once, so what is checked is what was hashed. Every file but
          ``SHA256SUMS.txt`` is hashed there, and that file must equal, byte for byte, the one that
          the folder implies: any single changed byte fails.
Content:  plan, journals, numbers, partners and registration must agree with each other.
Author:   who can change a file can also write new checksums; only a signature proves an author.
Replay:   episodes chosen by the bundle's own root are played again and compared: counts and flags
          exactly, numbers to `REPLAY_TOL`, but for lambda, whose long memory keeps last bits.
Hostile:  every size is checked before it is believed: bytes read, files, planned episodes,
          resamples, nesting. Links, pipes, folders and odd names are refused.
Older:    CHAMBER's bundles (version 3, no plan, no chains) re-verify by the estimator they name.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal, cast

from pydantic import ValidationError

from cadenza.benchmark.builders import code_digest
from cadenza.benchmark.bundle import (
    BUNDLE_NAME,
    CHAIN_KEY,
    FAILURES_NAME,
    PARTNERS_NAME,
    PREREG_NAME,
    PREREG_PATH_KEY,
    REPRO_NAME,
    SPIKE_KEY,
    SPIKE_NAME,
    SUMS_NAME,
    TAG_OBJECT_KEY,
    encode_sums,
    episode_file_name,
    journal_genesis,
    partner_hash,
    partner_material,
    sealed_partner_spec,
    spike_bytes,
    spike_run,
    training_of,
)
from cadenza.benchmark.cells import (
    PLAN_NAME,
    CellRunner,
    EvaluationPlan,
    check_cell_episodes,
    partner_classes,
)
from cadenza.benchmark.registration import plan_differences, statistics_in
from cadenza.benchmark.safety_tables import safety_report
from cadenza.benchmark.signing import (
    SIGNATURE_NAME,
    bundle_root,
    read_allowed_signers,
    sign_statement,
    signature_checks,
    statement_of,
)
from cadenza.benchmark.tasks import get_task
from cadenza.core.errors import CadenzaError, IntegrityError, MissingExtraError
from cadenza.core.files import atomic_write_bytes, sha256_bytes
from cadenza.core.git import blobs_at_tag, git_blob_sha, tag_object
from cadenza.core.provenance import GIT_SHA_UNKNOWN
from cadenza.core.seeding import derive_substream
from cadenza.core.strict_json import MAX_JSON_BYTES, parse_json_object
from cadenza.evaluation.prereg import LockedRegistration
from cadenza.evaluation.report.view import Check as CheckResult
from cadenza.evaluation.results import (
    LEGACY_ESTIMATOR,
    BundleSummary,
    EpisodeResult,
    ResultBundle,
    first_problem,
)
from cadenza.evaluation.summary import recompute_summary
from cadenza.partners.registry import list_registered
from cadenza.partners.spec import PartnerSpec
from cadenza.safety.reporting.rendering import JSON_NAME, MARKDOWN_NAME, parse_report, report_files

#: What reading malformed data can raise; such an error is a failed row, not a traceback.
MALFORMED: Final = (
    CadenzaError,
    ArithmeticError,
    AttributeError,
    LookupError,
    OSError,
    RecursionError,
    TypeError,
    ValueError,
)
#: Longest detail of a row, and longest sentence about what is malformed, characters.
_MAX_DETAIL, _MAX_SENTENCE = 300, 600


def guarded(name: str, check: Callable[[], Iterable[CheckResult]]) -> list[CheckResult]:
    """Return the rows of ``check``; an error on malformed data becomes one failed row ``name``."""
    rows: list[CheckResult] = []
    try:
        rows.extend(check())
    except MissingExtraError:  # says nothing of the data
        raise
    except MALFORMED as error:
        rows.append(CheckResult(name=name, ok=False, detail=sentence(error)[:_MAX_DETAIL]))
    return rows


def sentence(error: BaseException) -> str:
    """Return what is wrong with a file, on one line."""
    text = first_problem(error) if isinstance(error, ValidationError) else str(error)
    text = " ".join(text.split()) or type(error).__name__
    if isinstance(error, (LookupError, TypeError, AttributeError)):
        text = f"malformed: {type(error).__name__}: {text}"
    return text if len(text) <= _MAX_SENTENCE else f"{text[:_MAX_SENTENCE]}…"


def all_ok(rows: Sequence[CheckResult]) -> bool:
    """Return whether there is at least one row and every row holds."""
    return bool(rows) and all(row.ok for row in rows)


def standing(
    rows: Sequence[CheckResult], *, lacks_repository: bool = False
) -> tuple[Literal["good", "warn", "bad"], str]:
    """Return how a bundle stands, also in words: it verifies, but for its sources, or not.

    Where no repository was found, nothing is known of its registration's tag.
    """
    failed = [row for row in rows if not row.ok]
    if not failed:
        return "good", f"Sealed and verified: {len(rows)} checks passed"
    names = {row.name for row in failed}
    if lacks_repository and REGISTRATION_TAG in names <= {ELIGIBILITY, REGISTRATION_TAG}:
        sources = ", and not of a clean commit" if len(names) > 1 else ""
        return "warn", f"Registration not checked here: no repository holds its tag{sources}"
    if names == {ELIGIBILITY}:
        return "warn", "Sealed and verified, but not of a clean commit"
    return "bad", f"Does not verify: {len(failed)} of {len(rows)} checks failed"


def render_check_table(rows: Sequence[CheckResult]) -> str:
    """Return one line per row and the verdict, for a terminal."""
    width = max((len(row.name) for row in rows), default=0)
    lines = [
        f"{'PASS' if row.ok else 'FAIL'}  {row.name:<{width}}  {row.detail}".rstrip()
        for row in rows
    ]
    passed = sum(row.ok for row in rows)
    verdict = "PASS" if all_ok(rows) else "FAIL"
    return "\n".join([*lines, f"verify: {verdict} ({passed}/{len(rows)} checks)"]) + "\n"


#: Largest relative difference between a stated number and its recomputation: other BLAS builds
#: round sums differently.
SUMMARY_REL_TOL: Final = 1e-9


#: Most cells of a plan that is listed: twenty times the largest evaluation we know of.
MAX_CELLS: Final = 1_000_000
#: Largest difference of a number between a recorded episode and its replay: other machines round
#: otherwise, and an episode carries that on.
REPLAY_TOL: Final = 1e-3


@dataclass(frozen=True, kw_only=True)
class BundleUnderTest:
    """A parsed bundle and the bytes of its files."""

    bundle: ResultBundle
    files: Mapping[str, bytes]
    repo_path: Path | None

    @cached_property
    def plan(self) -> EvaluationPlan:
        """The plan inside the bundle."""
        plan = EvaluationPlan.from_bytes(self.files[PLAN_NAME])
        combinations = len(plan.policies) * len(plan.partners) * len(plan.conditions)
        blocks = -(-plan.episodes_per_seed // plan.block_size)
        cells = combinations * len(plan.seeds) * blocks
        largest = min(plan.block_size, plan.episodes_per_seed)
        if max(cells, largest) > MAX_CELLS:  # before anything is listed cell by cell
            raise IntegrityError(
                f"{PLAN_NAME}: expected at most {MAX_CELLS} cells, and as many episodes in each, "
                f"got {cells} cells of {largest}."
            )
        return plan

    @cached_property
    def episodes(self) -> dict[int, list[EpisodeResult]]:
        """Episodes by seed, in file order, chains checked."""
        policy = self.bundle.policy_id
        return {
            seed: read_journal(
                self.files[episode_file_name(seed)],
                genesis=journal_genesis(self.plan, policy, seed),
                source=episode_file_name(seed),
            )
            for seed in self.plan.seeds
        }

    @cached_property
    def by_cell(self) -> dict[str, list[EpisodeResult]]:
        """Episodes by the key of their planned cell; what is too many is at ``""``."""
        failed, found = set(_failures(self)), dict[str, list[EpisodeResult]]()
        rest = {seed: list(episodes) for seed, episodes in self.episodes.items()}
        for key, cell in self.plan.cells.items():
            if cell.policy == self.bundle.policy_id and key not in failed:
                found[key] = rest[cell.seed][: cell.n_episodes]
                del rest[cell.seed][: cell.n_episodes]
        return found | {"": [episode for episodes in rest.values() for episode in episodes]}


def content_checks(case: BundleUnderTest, *, is_older: bool = False) -> list[CheckResult]:
    """Return one row per agreement between the files of a bundle.

    One from before plans and chains has fewer (``is_older``).
    """
    older: list[tuple[str, Callable[[BundleUnderTest], Iterable[CheckResult]]]] = [
        ("summary", _check_older_summary),
        ("partners", _check_older_partners),
        ("repro", _check_repro),
        ("prereg", _check_registration_file),
    ]
    checks = (
        older
        if is_older
        else [
            ("plan", _check_plan),
            ("episodes", _check_episodes),
            ("failures", _check_failures),
            ("summary", _check_summary),
            ("safety", _check_safety_tables),
            ("spike", _check_spike),
            ("partners", _check_partners),
            ("repro", _check_repro),
            ("prereg", _check_registration_file),
            ("prereg:conforms", _check_conformance),
        ]
    )
    return [row for name, check in checks for row in guarded(name, lambda c=check: c(case))]


def read_journal(data: bytes, *, genesis: str, source: str) -> list[EpisodeResult]:
    """Return the episodes of a journal whose chain is whole.

    Raises:
        IntegrityError: A line is torn, foreign, out of order or not an episode.
    """
    lines = data.split(b"\n")
    if lines.pop() != b"":
        raise IntegrityError(f"{source}: expected a complete last line, got a truncated one.")
    previous, episodes = genesis, list[EpisodeResult]()
    for number, line in enumerate(lines, start=1):
        content = parse_json_object(line, source=f"{source} line {number}")
        try:
            episode = EpisodeResult.model_validate(content)
        except ValidationError as error:
            told = first_problem(error)
            raise IntegrityError(f"{source} line {number}: not an episode: {told}.") from error
        if episode.metadata.get(CHAIN_KEY) != previous:
            raise IntegrityError(
                f"{source} line {number}: expected the hash of the line before it, got another; "
                "lines were removed, added or reordered."
            )
        previous = sha256_bytes(line + b"\n")
        episodes.append(episode)
    return episodes


def _check_plan(case: BundleUnderTest) -> Iterator[CheckResult]:
    bundle, plan = case.bundle, case.plan
    combinations = len(plan.partners) * len(plan.conditions)
    policy = plan.policy(bundle.policy_id)
    stated = {n: bundle.metadata[n] for n in ("method", "training_seed") if n in bundle.metadata}
    agreements: dict[str, tuple[object, object]] = {
        "digest": (bundle.metadata.get("plan_sha256"), plan.digest),
        "code": (bundle.metadata.get("code_sha256"), plan.code_sha256),
        "task": ((bundle.task_id, bundle.task_version), (plan.env.task, plan.task_version)),
        "package": (bundle.package_version, plan.package_version),
        "policy": (bundle.policy_sha256, policy.weights_sha256),
        "training": (stated, training_of(policy)),
        "seeds": (tuple(bundle.seed_schedule.seeds), plan.seeds),
        "schedule": (
            bundle.seed_schedule.episodes_per_seed,
            plan.episodes_per_seed * combinations,
        ),
    }
    for name, (said, planned) in agreements.items():
        ok = said == planned
        detail = "" if ok else f"bundle says {said}, plan says {planned}"
        yield CheckResult(name=f"plan:{name}", ok=ok, detail=detail)


def _check_episodes(case: BundleUnderTest) -> Iterator[CheckResult]:
    """Every planned cell of the policy is there, complete, in order, and nothing else."""
    for key, episodes in case.by_cell.items():
        if key:
            check_cell_episodes(case.plan, case.plan.cells[key], episodes)
    for seed, episodes in case.episodes.items():
        unplanned = sum(episode.seed == seed for episode in case.by_cell[""])
        yield CheckResult(
            name=f"episodes:seed{seed}",
            ok=not unplanned,
            detail=f"{unplanned} unplanned"
            if unplanned
            else f"{len(episodes)} as planned, chain whole",
        )


def _check_failures(case: BundleUnderTest) -> Iterator[CheckResult]:
    failures = _failures(case)
    unknown = sorted(failures.keys() - case.plan.cells.keys())
    if unknown:
        raise IntegrityError(f"{FAILURES_NAME}: expected planned cells, got {unknown[:3]}.")
    labels = [case.plan.cells[key].label for key in failures]
    detail = f"{len(labels)} failed, e.g. {labels[0]}" if labels else ""
    yield CheckResult(name="failures:none", ok=not labels, detail=detail)


def _failures(case: BundleUnderTest) -> dict[str, Any]:
    if FAILURES_NAME not in case.files:
        return {}
    return parse_json_object(case.files[FAILURES_NAME], source=FAILURES_NAME)


def _check_summary(case: BundleUnderTest) -> Iterator[CheckResult]:
    episodes = [episode for group in case.episodes.values() for episode in group]
    schedule = case.bundle.seed_schedule
    planned = schedule.episodes_per_seed * len(schedule.seeds)
    yield from _compare_summary(case.bundle.summary, episodes, planned)


def _compare_summary(
    stated: BundleSummary, episodes: Sequence[EpisodeResult], planned: int
) -> Iterator[CheckResult]:
    yield CheckResult(
        name="summary:n_episodes",
        ok=len(episodes) == stated.n_episodes == planned,
        detail=f"{len(episodes)} found, {stated.n_episodes} stated, {planned} planned",
    )
    fresh = recompute_summary(stated, episodes).model_dump(mode="json")
    for name, value in stated.model_dump(mode="json").items():
        if name == "n_episodes":
            continue
        ok = equal_within(value, fresh[name], SUMMARY_REL_TOL)
        detail = "" if ok else f"states {value}, the episodes give {fresh[name]}"[:200]
        yield CheckResult(name=f"summary:{name}", ok=ok, detail=detail)


def _check_safety_tables(case: BundleUnderTest) -> Iterator[CheckResult]:
    """The tables are those that the episodes give; bundles without safety records have none."""
    episodes = [episode for group in case.episodes.values() for episode in group]
    stored = case.files.get(JSON_NAME)
    if stored is None:
        missing = safety_report(case.plan, episodes, solver_version=None) is not None
        detail = "missing, though the filter ran" if missing else "no safety records"
        present = [name for name in (JSON_NAME, MARKDOWN_NAME) if name in case.files]
        yield CheckResult(name="safety:absent", ok=not missing and not present, detail=detail)
        return
    report = parse_report(stored, source=JSON_NAME)
    yield CheckResult(name="safety:hash", ok=True, detail=report.content_hash()[:12])
    version = None if report.details is None else report.details.solver_version
    same = report == safety_report(case.plan, episodes, solver_version=version)
    detail = "" if same else "other than what the episodes give"
    yield CheckResult(name="safety:tables", ok=same, detail=detail)
    text = case.files.get(MARKDOWN_NAME) == report_files(report)[MARKDOWN_NAME]
    detail = "" if text else f"not the text of {JSON_NAME}"
    yield CheckResult(name="safety:markdown", ok=text, detail=detail)


def _check_spike(case: BundleUnderTest) -> Iterator[CheckResult]:
    """The archive of a spike is the one that label and episodes give."""
    if SPIKE_KEY not in case.bundle.metadata and SPIKE_NAME not in case.files:
        return
    episodes = (episode for group in case.episodes.values() for episode in group)
    fresh = spike_run(case.bundle, case.plan, episodes)
    same = case.files.get(SPIKE_NAME) == spike_bytes(fresh)
    detail = fresh.spike_id if same else "other than what the episodes give"
    yield CheckResult(name="spike:archive", ok=same, detail=detail)


def equal_within(a: object, b: object, relative: float) -> bool:
    """Return whether two JSON values are equal, floats up to ``relative``."""
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=relative, abs_tol=relative)
    if isinstance(a, dict) and isinstance(b, dict):
        left, right = cast("dict[str, object]", a), cast("dict[str, object]", b)
        return left.keys() == right.keys() and all(
            equal_within(left[key], right[key], relative) for key in left
        )
    if isinstance(a, list) and isinstance(b, list):
        first, second = cast("Sequence[object]", a), cast("Sequence[object]", b)
        return len(first) == len(second) and all(
            equal_within(x, y, relative) for x, y in zip(first, second, strict=True)
        )
    return isinstance(a, type(b)) and a == b


def _check_partners(case: BundleUnderTest) -> Iterator[CheckResult]:
    stored = parse_json_object(case.files[PARTNERS_NAME], source=PARTNERS_NAME)
    known = set(list_registered())
    for entry in case.plan.partners:
        registered = entry.partner.class_name in known
        yield CheckResult(
            name=f"partner:{entry.name}:registered",
            ok=registered,
            detail=entry.partner.class_name if registered else f"{entry.partner.class_name} is not",
        )
    yield CheckResult(name="partners:material", ok=stored == partner_material(case.plan))
    fresh = {e.name: partner_hash(sealed_partner_spec(e)) for e in case.plan.partners}
    stated = case.bundle.partner_hashes
    changed = sorted(name for name in {*fresh, *stated} if fresh.get(name) != stated.get(name))
    detail = f"code, options or weights are others now: {', '.join(changed)}" if changed else ""
    yield CheckResult(name="partners:hashes", ok=not changed, detail=detail)


def _check_repro(case: BundleUnderTest) -> Iterator[CheckResult]:
    same = case.files[REPRO_NAME] == case.bundle.repro_command.encode() + b"\n"
    yield CheckResult(name="repro:command", ok=same, detail=case.bundle.repro_command)


def _check_registration_file(case: BundleUnderTest) -> Iterator[CheckResult]:
    """The copy is the file that the tag holds at its path."""
    tag, blob = case.bundle.prereg_git_tag, case.bundle.prereg_blob_sha
    if tag is None or blob is None:
        absent = PREREG_NAME not in case.files
        yield CheckResult(name="prereg:absent", ok=absent, detail="not registered beforehand")
        return
    copy = git_blob_sha(case.files[PREREG_NAME])
    yield CheckResult(name="prereg:copy", ok=copy == blob, detail=f"blob {blob[:12]}")
    yield from guarded(REGISTRATION_TAG, lambda: _check_tag(case, tag, blob))


def _check_conformance(case: BundleUnderTest) -> Iterator[CheckResult]:
    """The bundle is what was registered."""
    tag = case.bundle.prereg_git_tag
    if tag is not None:
        copy = LockedRegistration(content=case.files[PREREG_NAME], git_tag=tag)
        found = plan_differences(copy, case.plan, statistics_in(case.bundle.summary))
        detail = "; ".join(found)[:_MAX_DETAIL] if found else "plan and statistics as registered"
        yield CheckResult(name="prereg:conforms", ok=not found, detail=detail)


def _check_tag(case: BundleUnderTest, tag: str, blob: str) -> Iterator[CheckResult]:
    if case.repo_path is None:
        detail = f"no repository to find {tag} in; name it with --repo-root"
        yield CheckResult(name=REGISTRATION_TAG, ok=False, detail=detail)
        return
    path = case.bundle.metadata.get(PREREG_PATH_KEY)
    blobs = blobs_at_tag(case.repo_path, tag)
    held = blobs.get(path) == blob if isinstance(path, str) else blob in blobs.values()
    where = f" at {path}" if path else ""
    detail = f"tag {tag}" + ("" if held else f" holds no such file{where}")
    yield CheckResult(name=REGISTRATION_TAG, ok=held, detail=detail)
    recorded = case.bundle.metadata.get(TAG_OBJECT_KEY)
    if recorded is not None:
        now = tag_object(case.repo_path, tag)
        detail = f"object {now[:12]}" if now == recorded else f"moved since: was {recorded}"
        yield CheckResult(name="prereg:tag_object", ok=now == recorded, detail=detail)


#: Files that no manifest lists: they hold it, or came after it.
_UNLISTED: Final = frozenset({BUNDLE_NAME, SUMS_NAME, SIGNATURE_NAME})
#: Name of the check that the sources behind a bundle are known.
ELIGIBILITY: Final = "bundle:eligibility"
#: Name of the check that a tag of a git repository holds the registration.
REGISTRATION_TAG: Final = "prereg:tag"
#: Name of the only row when there is no bundle to check.
UNREADABLE: Final = "bundle"
#: File names a bundle may hold: plain, visible, confined to the folder.
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
#: More files than any bundle holds: one journal per seed and a handful of others.
MAX_FILES: Final = 10_000
#: Most bytes of all files together.
MAX_BUNDLE_BYTES: Final = 1 << 30


def verify_bundle_dir(
    folder: Path,
    *,
    repo_path: Path | None = None,
    allow_dirty: bool = False,
    allowed_signers: Path | None = None,
    require_signature: bool = False,
    replay: int = 0,
    artifacts_root: Path = Path(),
) -> list[CheckResult]:
    """Check the bundle in ``folder``.

    Args:
        folder: Bundle folder.
        repo_path: Git repository that holds the registration tag; needed only by bundles with one.
        allow_dirty: Accept a bundle made from changed sources, or from others than these without
            a commit.
        allowed_signers: Keys that are trusted; None asks for no name.
        require_signature: Refuse a bundle without a valid signature by one of them.
        replay: Episodes to play again.
        artifacts_root: Folder that ``local://`` addresses of policies are relative to.

    Returns:
        One row per check; the bundle passes iff all hold (`all_ok`).

    Raises:
        ConfigurationError: The file of trusted keys cannot be used.
        MissingExtraError: A check needs a package that is not installed.
    """
    signers = None if allowed_signers is None else read_allowed_signers(allowed_signers)
    try:
        files = read_bundle_files(folder)
    except MALFORMED as error:
        return [CheckResult(name=UNREADABLE, ok=False, detail=" ".join(str(error).split()))]
    case, rows = verify_files(files, repo_path=repo_path, allow_dirty=allow_dirty)
    if case is None:
        return rows
    rows += signature_rows(case, signers=signers, required=require_signature)
    if replay:
        rows += guarded("replay", lambda: _check_replay(case, replay, artifacts_root))
    return rows


def signature_rows(
    case: BundleUnderTest, *, signers: Mapping[bytes, str] | None, required: bool = False
) -> list[CheckResult]:
    """Return what `signature_checks` says of a bundle."""
    return guarded(
        "signature",
        lambda: signature_checks(case.bundle, case.files, signers=signers, required=required),
    )


def verify_files(
    files: Mapping[str, bytes], *, repo_path: Path | None = None, allow_dirty: bool = False
) -> tuple[BundleUnderTest | None, list[CheckResult]]:
    """Check what `read_bundle_files` returned, but for signature and replay.

    Returns:
        The bundle, None if it is malformed, and one row per check.
    """
    rows = guarded("sha256sums", lambda: sums_checks(files))
    try:
        content = parse_json_object(files[BUNDLE_NAME], source=BUNDLE_NAME)
        bundle = ResultBundle.model_validate(content)
    except MALFORMED as error:
        detail = sentence(error)[:_MAX_DETAIL]
        return None, [*rows, CheckResult(name="bundle:schema", ok=False, detail=detail)]
    rows.append(
        CheckResult(name="bundle:schema", ok=True, detail=f"version {bundle.schema_version}")
    )
    case = BundleUnderTest(bundle=bundle, files=files, repo_path=repo_path)
    is_older = "kind" not in content and PLAN_NAME not in bundle.manifest
    rows += guarded(ELIGIBILITY, lambda: _check_eligibility(case, allow_dirty))
    rows += guarded("manifest", lambda: _check_manifest(bundle, files))
    rows += content_checks(case, is_older=is_older)
    return case, rows


def sign_verified(
    folder: Path, key_file: Path, *, repo_path: Path | None = None, allow_dirty: bool = False
) -> Path:
    """Sign the bundle in ``folder`` if it verifies, and return the signature's path.

    Raises:
        IntegrityError: A check fails.
        ConfigurationError: The key cannot be used.
        MissingExtraError: cryptography is not installed.
    """
    path = folder / SIGNATURE_NAME
    path.unlink(missing_ok=True)
    rows = verify_bundle_dir(folder, repo_path=repo_path, allow_dirty=allow_dirty)
    failed = next((row for row in rows if not row.ok), None)
    if failed is not None:
        raise IntegrityError(
            f"{folder}: expected a bundle that verifies, got {failed.name}: {failed.detail}; "
            "`cadenza eval verify` shows all."
        )
    files = read_bundle_files(folder)
    bundle = ResultBundle.model_validate_json(files[BUNDLE_NAME])
    atomic_write_bytes(path, sign_statement(statement_of(bundle, files), key_file))
    return path


def read_bundle_files(folder: Path) -> dict[str, bytes]:
    """Return every file of a bundle's folder; anything but plain files is refused.

    Raises:
        IntegrityError: There is no bundle, or something in it is no plain file or too large.
        OSError: A file cannot be read.
    """
    if not folder.is_dir():
        found = "an archive or other file, unpack it first" if folder.exists() else "none"
        raise IntegrityError(f"{folder}: expected a bundle folder, got {found}.")
    files: dict[str, bytes] = {}
    left = MAX_BUNDLE_BYTES
    paths = sorted(islice(folder.iterdir(), MAX_FILES + 1))
    if len(paths) > MAX_FILES:
        raise IntegrityError(f"{folder}: expected at most {MAX_FILES} files, got more.")
    if BUNDLE_NAME not in (names := [path.name for path in paths]):
        inside = sorted(f"{path.parent}" for path in folder.glob(f"*/*/{BUNDLE_NAME}"))
        hint = f"; name one of {', '.join(inside)}" if inside else ""
        raise IntegrityError(
            f"{folder}: expected {BUNDLE_NAME}, got {', '.join(names[:20]) or 'nothing'}{hint}."
        )
    for path in paths:
        if path.is_symlink() or not path.is_file() or not _PLAIN_NAME.fullmatch(path.name):
            raise IntegrityError(f"{path.name!r}: expected plain files only, got another entry.")
        limit = min(MAX_JSON_BYTES, left)
        with path.open("rb") as file:
            data = file.read(limit + 1)
        if len(data) > limit:
            raise IntegrityError(f"{path.name}: expected at most {limit} bytes, got more.")
        files[path.name] = data
        left -= len(data)
    return files


def sums_checks(files: Mapping[str, bytes]) -> Iterator[CheckResult]:
    """Yield whether the list of checksums is, byte for byte, the one that the files imply."""
    if SUMS_NAME not in files:
        yield CheckResult(name="sha256sums", ok=False, detail=f"{SUMS_NAME} is missing")
        return
    lines = files[SUMS_NAME].decode("ascii", errors="replace").split("\n")
    stated = {name: digest for digest, _, name in (line.partition("  ") for line in lines) if name}
    actual = {
        name: sha256_bytes(data)
        for name, data in files.items()
        if name not in (SUMS_NAME, SIGNATURE_NAME)
    }
    for name in sorted(stated.keys() | actual.keys()):
        if name not in actual:
            detail = "listed, but the file is missing"
        elif name not in stated:
            detail = "the file is not listed"
        else:
            detail = "" if stated[name] == actual[name] else "the bytes have changed"
        yield CheckResult(name=f"sha256sums:{name}", ok=not detail, detail=detail)
    exact = files[SUMS_NAME] == encode_sums(actual)
    yield CheckResult(
        name="sha256sums:form",
        ok=exact,
        detail="" if exact else "not byte for byte the list that the files imply",
    )


def _check_eligibility(case: BundleUnderTest, allow_dirty: bool) -> Iterator[CheckResult]:
    """Pass a clean commit and, without a commit as in a release, the very sources that verify."""
    bundle = case.bundle
    ok, detail = not bundle.dirty, f"commit {bundle.git_sha[:12]}, clean"
    if bundle.dirty and bundle.git_sha == GIT_SHA_UNKNOWN and PLAN_NAME in case.files:
        partners = partner_classes(case.plan.partners, case.plan.conditions)
        ours = code_digest(get_task(case.plan.env.task), partners)
        ok = bundle.metadata.get("code_sha256") == ours
        detail = f"no commit, sources {'equal' if ok else 'differ from'} those that verify"
    elif bundle.dirty:
        detail = f"commit {bundle.git_sha[:12]}, sources changed"
    if not ok:
        detail += (
            " (accepted on request)"
            if allow_dirty
            else "; `cadenza eval verify --allow-dirty` accepts it"
        )
    yield CheckResult(name=ELIGIBILITY, ok=ok or allow_dirty, detail=detail)


def _check_manifest(bundle: ResultBundle, files: Mapping[str, bytes]) -> Iterator[CheckResult]:
    for name, digest in sorted(bundle.manifest.items()):
        if name not in files:
            detail = "the file is missing"
        else:
            detail = "" if sha256_bytes(files[name]) == digest else "the bytes have changed"
        yield CheckResult(name=f"manifest:{name}", ok=not detail, detail=detail)
    unlisted = sorted(files.keys() - bundle.manifest.keys() - _UNLISTED)
    yield CheckResult(
        name="manifest:membership",
        ok=not unlisted,
        detail=f"not listed: {unlisted}" if unlisted else "",
    )


def _check_older_summary(case: BundleUnderTest) -> Iterator[CheckResult]:
    schedule, stated = case.bundle.seed_schedule, case.bundle.summary
    episodes: list[EpisodeResult] = []
    for seed in schedule.seeds:
        name = episode_file_name(seed)
        lines = case.files[name].split(b"\n")
        torn = lines.pop() != b""
        own = [EpisodeResult.model_validate(parse_json_object(x, source=name)) for x in lines]
        ok = not torn and len(own) == schedule.episodes_per_seed
        ok = ok and all(episode.seed == seed for episode in own)
        detail = f"{len(own)} of {schedule.episodes_per_seed}, no chain in this format"
        yield CheckResult(name=f"episodes:seed{seed}", ok=ok, detail=detail)
        episodes += own
    ok = stated.estimator == LEGACY_ESTIMATOR
    yield CheckResult(name="bundle:estimator", ok=ok, detail=stated.estimator)
    yield from _compare_summary(stated, episodes, len(episodes))


def _check_older_partners(case: BundleUnderTest) -> Iterator[CheckResult]:
    """Identities by the historical rule, which covers neither options nor weight bytes."""
    stored = parse_json_object(case.files[PARTNERS_NAME], source=PARTNERS_NAME)
    known = set(list_registered())
    fresh: dict[str, str] = {}
    for name, fields in stored.items():
        spec = PartnerSpec(
            class_name=fields["class_name"],
            seed=fields["seed"],
            checkpoint_step=fields["checkpoint_step"],
            weights_uri=fields["weights_uri"],
        )
        fresh[name] = spec.partner_id
        ok = spec.class_name in known
        yield CheckResult(name=f"partner:{name}:registered", ok=ok, detail=spec.class_name)
    ok = fresh == case.bundle.partner_hashes
    yield CheckResult(name="partners:hashes", ok=ok, detail="" if ok else "others now")


def _check_replay(case: BundleUnderTest, wanted: int, artifacts: Path) -> Iterator[CheckResult]:
    """Play episodes again; the root of the bundle chooses them, so that nobody else does."""
    root = bundle_root(case.files)
    cells = case.plan.cells
    recorded = [
        (cells[key], cells[key].first_episode + number, episode)
        for key, episodes in case.by_cell.items()
        if key
        for number, episode in enumerate(episodes)
    ]
    stream = derive_substream("benchmark.replay", root_seed=int(root[:15], 16))
    count = min(wanted, len(recorded))
    chosen = stream.default_rng().choice(len(recorded), size=count, replace=False)
    runner = CellRunner(plan=case.plan, artifacts_root=artifacts.resolve())
    for cell, index, episode in (recorded[int(i)] for i in sorted(chosen)):
        again, _ = runner.replay(cell, index)
        fields = sorted(
            name
            for name, value in _comparable(episode).items()
            if not equal_within(value, _comparable(again)[name], REPLAY_TOL)
        )
        detail = f"differs in {', '.join(fields)}" if fields else "as recorded"
        name = f"replay:{cell.condition}:{cell.partner}:seed{cell.seed}:{index}"
        yield CheckResult(name=name, ok=not fields, detail=detail)


def _comparable(episode: EpisodeResult) -> dict[str, Any]:
    """Return what a replay must repeat."""
    fields = episode.model_dump(mode="json")
    fields["metadata"].pop(CHAIN_KEY, None)
    record: dict[str, Any] = fields["safety"] or {}
    for name in ("lambda_mean", "lambda_var"):
        record.pop(name, None)
    return fields
