"""Result bundles: everything needed to check and repeat one evaluation, sealed by checksums.

Files:    ``bundle.json`` (schedule, headline numbers, manifest), ``plan.json``, one hash-chained
          ``episodes_seed<seed>.jsonl`` per seed, ``partners.json``, ``REPRO.txt``, optionally
          ``prereg.yaml``, ``failures.json`` and a spike's ``spike_run.json``, where the filter ran
          ``three_tables.json`` and ``three_tables.md``, and ``SHA256SUMS.txt`` over all others.
Promise:  equal episodes, plan and code give equal bytes; nothing in a bundle depends on time, host
          paths or the number of workers, except the declared platform fingerprint and
          the version of the filter's solver.
Writing:  into a hidden folder beside the target, every file and the folder synced, then renamed: a
          bundle exists completely or not at all.
"""

import json
import os
import platform
import secrets
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from pydantic import JsonValue

from cadenza.benchmark.builders import partner_spec
from cadenza.benchmark.cells import PLAN_NAME, EvaluationPlan, PartnerEntry, PolicyEntry
from cadenza.benchmark.executor import JobFailure
from cadenza.benchmark.safety_tables import safety_report, solver_version_of
from cadenza.benchmark.tasks import get_task
from cadenza.core.errors import StorageError
from cadenza.core.files import canonical_json, fsync_folder, make_folder, sha256_bytes
from cadenza.core.provenance import GIT_SHA_UNKNOWN, compute_run_metadata
from cadenza.evaluation.prereg import LockedRegistration
from cadenza.evaluation.results import (
    RIG_REASON,
    ConditionPair,
    EpisodeResult,
    PlatformFingerprint,
    ResultBundle,
    SeedSchedule,
    SpikeRun,
    episode_line,
)
from cadenza.evaluation.summary import SummarySettings, compute_summary
from cadenza.partners.spec import PARTNER_ID_LENGTH, PartnerSpec, code_of
from cadenza.safety.reporting.rendering import report_files

BUNDLE_NAME: Final = "bundle.json"
SUMS_NAME: Final = "SHA256SUMS.txt"
PARTNERS_NAME: Final = "partners.json"
REPRO_NAME: Final = "REPRO.txt"
SPIKE_NAME: Final = "spike_run.json"
PREREG_NAME: Final = "prereg.yaml"
FAILURES_NAME: Final = "failures.json"
#: Metadata key of an episode line that holds the SHA-256 of the line before it.
CHAIN_KEY: Final = "previous_line_sha256"
#: Metadata keys of a bundle: path of the registration at its tag, and the object the tag named.
PREREG_PATH_KEY: Final = "prereg_path"
TAG_OBJECT_KEY: Final = "prereg_tag_object"
#: Metadata key of a bundle that tells axis and sub-stage of a spike.
SPIKE_KEY: Final = "spike"
#: Random streams behind an episode; ``{seed}`` and ``{episode}`` stand for numbers.
SUBSTREAM_LABELS: Final = ("evaluation.episode.{episode}", "evaluation.policy.random")


def spike_run(
    bundle: ResultBundle, plan: EvaluationPlan, episodes: Iterable[EpisodeResult]
) -> SpikeRun:
    """Return the archive of the spike that a bundle is; of two conditions, the plan's first.

    Raises:
        pydantic.ValidationError: The bundle is none of a spike.
    """
    label: Any = bundle.metadata[SPIKE_KEY]
    control, treatment = (condition.name for condition in plan.conditions[:2])
    played = [
        episode.model_copy(update={"metadata": {"policy": bundle.policy_id}})
        for episode in sorted(episodes, key=lambda e: (e.seed, e.condition or "", e.episode_idx))
        if episode.condition in (control, treatment)
    ]
    return SpikeRun(
        spike_id=f"{label['axis']}-{label['sub_stage']}-{bundle.policy_id}",
        prereg_sha=bundle.prereg_blob_sha or "",
        git_tag=bundle.prereg_git_tag or "",
        **label,
        condition_pair=ConditionPair(homogeneous_id=control, heterogeneous_id=treatment),
        seeds=list(plan.seeds),
        episode_results=played,
    )


def rehearsal_of(bundle: ResultBundle) -> str | None:
    """Return why a bundle counts for nothing: it tries a spike's rig; None for any other."""
    label: Any = bundle.metadata.get(SPIKE_KEY) or {}
    return RIG_REASON if label.get("sub_stage") == "1a" else None


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleRequest:
    """What one bundle is made of.

    Attributes:
        plan: The whole plan.
        policy: Name of the policy this bundle is about.
        episodes: Its episodes, in plan order.
        provenance: Code behind them, see `current_provenance`.
        repro_command: Command line that repeats the evaluation, without host paths.
        failures: Cells that failed for good; not empty only under ``best_effort``.
        settings: Headline condition, comparison and intervals of the summary.
        config_sha256: Digest of the training configuration, if known.
        network_sha256: How networks round where the episodes were played, if known.
        prereg: Registered protocol, if any.
        spike: ``axis`` and ``sub_stage`` of the spike that it is, if any.
    """

    plan: EvaluationPlan
    policy: str
    episodes: Sequence[EpisodeResult]
    provenance: Mapping[str, Any]
    repro_command: str
    failures: Sequence[JobFailure] = ()
    settings: SummarySettings = field(default_factory=SummarySettings)
    config_sha256: str | None = None
    network_sha256: str | None = None
    prereg: LockedRegistration | None = None
    spike: dict[str, JsonValue] | None = None


def sealed_partner_spec(entry: PartnerEntry) -> PartnerSpec:
    """Return the spec behind a planned partner, content-addressed by its weights."""
    return replace(partner_spec(entry.partner), weights_sha256=entry.weights_sha256)


def partner_hash(spec: PartnerSpec) -> str:
    """Return the partner's identity in a bundle: 16 hex digits over options and weight bytes."""
    return spec.content_id[:PARTNER_ID_LENGTH]


def current_provenance(repo_root: Path | None) -> dict[str, Any]:
    """Return the fields of `ResultBundle` that tell the code and the machine of this process.

    None takes this package's own checkout. Git cannot prove the state of an installation without
    one, so that its bundles count as dirty.
    """
    context = compute_run_metadata(seed=0, run_kind="evaluation", repo_root=repo_root)
    dirty = context.git_dirty is not False
    known = dirty and context.diff_hash != GIT_SHA_UNKNOWN
    return {
        "git_sha": context.git_sha,
        "dirty": dirty,
        "diff_sha256": context.diff_hash if known else None,
        "lock_sha256": None if context.git_sha == GIT_SHA_UNKNOWN else context.lock_hash,
        "platform": platform_fingerprint(),
    }


def platform_fingerprint() -> PlatformFingerprint:
    """Return machine and library versions; evaluation computes on the CPU."""
    return PlatformFingerprint(
        os=platform.platform(),
        python=platform.python_version(),
        numpy=metadata.version("numpy"),
        torch=metadata.version("torch"),
        device="cpu",
    )


def episode_file_name(seed: int) -> str:
    """Return the name of the journal of one seed."""
    return f"episodes_seed{seed}.jsonl"


def journal_genesis(plan: EvaluationPlan, policy: str, seed: int) -> str:
    """Return what the first line of a journal carries in place of an earlier line's hash."""
    return sha256_bytes(f"cadenza-journal/1 {plan.digest} {policy} {seed}".encode())


def encode_journal(episodes: Sequence[EpisodeResult], *, genesis: str) -> bytes:
    """Return one canonical line per episode, each carrying the SHA-256 of the line before."""
    previous = genesis
    lines: list[bytes] = []
    for episode in episodes:
        stamped = episode.metadata | {CHAIN_KEY: previous}
        line = episode_line(episode.model_copy(update={"metadata": stamped}))
        previous = sha256_bytes(line)
        lines.append(line)
    return b"".join(lines)


def build_bundle_files(request: BundleRequest) -> dict[str, bytes]:
    """Return every file of the bundle by name; a pure function of ``request``.

    Raises:
        InputError: The episodes do not allow the requested statistics.
    """
    plan = request.plan
    files: dict[str, bytes] = {PLAN_NAME: plan.to_bytes()}
    for seed in plan.seeds:
        episodes = [episode for episode in request.episodes if episode.seed == seed]
        genesis = journal_genesis(plan, request.policy, seed)
        files[episode_file_name(seed)] = encode_journal(episodes, genesis=genesis)
    files[PARTNERS_NAME] = _pretty_json(partner_material(plan))
    files[REPRO_NAME] = request.repro_command.encode() + b"\n"
    if request.prereg is not None:
        files[PREREG_NAME] = request.prereg.content
    if request.spike is not None:
        run = spike_run(_bundle(request, {}), plan, request.episodes)
        files[SPIKE_NAME] = spike_bytes(run)
    if request.failures:
        files[FAILURES_NAME] = _pretty_json(_failure_material(request))
    tables = safety_report(plan, request.episodes, solver_version=solver_version_of(plan))
    if tables is not None:
        files |= report_files(tables)
    files[BUNDLE_NAME] = _pretty_json(_bundle(request, files).model_dump(mode="json"))
    files[SUMS_NAME] = encode_sums({name: sha256_bytes(data) for name, data in files.items()})
    return files


def spike_bytes(run: SpikeRun) -> bytes:
    """Return the file of a spike's archive: equal runs, equal bytes."""
    return canonical_json(run.model_dump(mode="json", exclude_none=True)) + b"\n"


def encode_sums(digests: Mapping[str, str]) -> bytes:
    """Return the one accepted form of ``SHA256SUMS.txt``: sorted by name, two spaces, newline."""
    return "".join(f"{digests[name]}  {name}\n" for name in sorted(digests)).encode()


def write_bundle_dir(folder: Path, files: Mapping[str, bytes]) -> None:
    """Put ``files`` into the new folder ``folder`` in one durable step.

    Raises:
        StorageError: ``folder`` exists, or the file system refused; nothing is left behind.
    """
    if folder.exists():
        raise StorageError(f"{folder}: expected no such folder yet, got one; choose another name.")
    staging = folder.parent / f".{folder.name}.{secrets.token_hex(8)}.staging"
    try:
        make_folder(folder.parent)
        for leftover in folder.parent.glob(f".{folder.name}.*.staging"):
            shutil.rmtree(leftover, ignore_errors=True)
        try:
            staging.mkdir()
            for name, data in files.items():
                _write_synced(staging / name, data)
            fsync_folder(staging)
            staging.rename(folder)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        fsync_folder(folder.parent)
    except OSError as error:
        raise StorageError(
            error.errno,
            f"{folder}: expected to write a bundle of {sum(map(len, files.values()))} bytes, got "
            f"'{error.strerror}'; free space and run again (finished cells are intact)",
        ) from error


def _write_synced(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _bundle(request: BundleRequest, files: Mapping[str, bytes]) -> ResultBundle:
    plan = request.plan
    combinations = len(plan.partners) * len(plan.conditions)
    return ResultBundle(
        task_id=plan.env.task,
        task_version=plan.task_version,
        policy_id=request.policy,
        partner_set_id="adhoc:" + "+".join(entry.name for entry in plan.partners),
        partner_hashes={e.name: partner_hash(sealed_partner_spec(e)) for e in plan.partners},
        **request.provenance,
        package_version=plan.package_version,
        seed_schedule=SeedSchedule(
            root_seed=request.settings.bootstrap_root_seed,
            seeds=list(plan.seeds),
            episodes_per_seed=plan.episodes_per_seed * combinations,
            substream_labels=list(SUBSTREAM_LABELS),
        ),
        repro_command=request.repro_command,
        manifest={name: sha256_bytes(data) for name, data in sorted(files.items())},
        summary=compute_summary(request.episodes, request.settings),
        prereg_git_tag=None if request.prereg is None else request.prereg.git_tag,
        prereg_blob_sha=None if request.prereg is None else request.prereg.blob_sha,
        policy_sha256=plan.policy(request.policy).weights_sha256,
        config_sha256=request.config_sha256,
        metadata={
            "plan_sha256": plan.digest,
            "network_sha256": request.network_sha256,
            "code_sha256": plan.code_sha256,
            "has_success": get_task(plan.env.task, plan.task_version).has_success,
            **training_of(plan.policy(request.policy)),
            **_where_registered(request.prereg),
            **({} if request.spike is None else {SPIKE_KEY: request.spike}),
        },
    )


def training_of(policy: PolicyEntry) -> dict[str, JsonValue]:
    """Return method and training seed of a policy, as a bundle's metadata hold them; or nothing."""
    if policy.method is None:
        return {}
    return {"method": policy.method, "training_seed": policy.training_seed}


def _where_registered(registration: LockedRegistration | None) -> dict[str, JsonValue]:
    """Return where the tag's tree holds the registration, and which object the tag named."""
    if registration is None:
        return {}
    places = {PREREG_PATH_KEY: registration.path, TAG_OBJECT_KEY: registration.tag_object}
    return {key: place for key, place in places.items() if place}


def partner_material(plan: EvaluationPlan) -> dict[str, dict[str, object]]:
    """Return what ``partners.json`` holds: every behavioural parameter by partner."""
    material: dict[str, dict[str, object]] = {}
    for entry in plan.partners:
        spec = sealed_partner_spec(entry)
        material[entry.name] = {
            "class_name": spec.class_name,
            "seed": spec.seed,
            "checkpoint_step": spec.checkpoint_step,
            "weights_uri": spec.weights_uri,
            "weights_sha256": spec.weights_sha256,
            "extra": dict(spec.extra),
            "seen": entry.seen,
        }
        code = code_of(spec.class_name)
        if code:
            material[entry.name]["code"] = code
    return material


def _failure_material(request: BundleRequest) -> dict[str, dict[str, object]]:
    return {
        failure.key: {
            "cell": request.plan.cells[failure.key].model_dump(mode="json"),
            "error": failure.error,
            "message": failure.message,
        }
        for failure in request.failures
    }


def _pretty_json(value: Mapping[str, object]) -> bytes:
    text = json.dumps(value, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False)
    return text.encode() + b"\n"
