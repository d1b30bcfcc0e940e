"""One run of `cadenza.aht.train`: its files, who may write them, and what it works with.

Layout under ``artifacts_root/artifacts``:
    ``<run_id>.run.json``             the run's card: status, configuration, fingerprint
    ``<run_id>_step<N>.pt``           policy checkpoint, with sidecar; all are kept
    ``<run_id>_step<N>.policy.safetensors``  its policy for whoever plays it
    ``<run_id>-state_step<N>.pt``     training state, with sidecar; the newest few are kept
    ``<run_id>.best.policy.safetensors``  that of the best checkpoint on validation partners
    ``<run_id>.curve.json``           reward curve, written when the run ends
    ``.<run_id>.lock``                locked while a process trains; the lock dies with the process
and ``log_dir/<run_id>.jsonl``, the run log.

Damage:  a state counts as intact if its own digest and those of all policy checkpoints before it
         hold. A resume takes the newest intact one and reports those it skipped; the steps after it
         are trained again, which restores what was damaged. If states exist but none is intact, the
         resume stops with an error.
"""

import fcntl
import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, cast

from cadenza.aht.config import EgoAHTConfig
from cadenza.aht.safety_telemetry import AnyDriver
from cadenza.aht.types import (
    EvaluationWatch,
    Evaluator,
    ProgressCallback,
    RunOutcome,
    TrainerFactory,
    partner_id_of,
)
from cadenza.core.checkpoints import (
    checkpoint_uri,
    list_checkpoints,
    load_checkpoint,
    pending_path,
    prune_checkpoints,
    read_metadata,
    resolve_uri,
    sidecar_path,
)
from cadenza.core.errors import (
    CheckpointError,
    ConfigurationError,
    NotReadyError,
    StorageError,
)
from cadenza.core.files import atomic_write_json, remove_temporaries
from cadenza.core.provenance import RunContext
from cadenza.core.types import PartnerLike
from cadenza.learn.nn.portable import policy_path

RunStatus = Literal["running", "finished"]

#: Version of the training state.
STATE_FORMAT: Final = "cadenza.training_state/1"
#: Version of the run's card.
CARD_FORMAT: Final = "cadenza.run/1"
#: Address of the folder that holds a run's files.
_FOLDER: Final = "artifacts"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFiles:
    """Paths of one run; ``local://`` addresses are relative to ``artifacts_root``."""

    run_id: str
    artifacts_root: Path
    log_dir: Path

    @property
    def folder(self) -> Path:
        """Folder of everything but the log."""
        return self.artifacts_root.resolve() / _FOLDER

    @property
    def card(self) -> Path:
        """The run's card."""
        return self.folder / f"{self.run_id}.run.json"

    @property
    def curve(self) -> Path:
        """The stored reward curve."""
        return self.folder / f"{self.run_id}.curve.json"

    @property
    def best(self) -> Path:
        """The policy file of the best checkpoint on validation partners, if there are any."""
        return policy_path(self.folder / f"{self.run_id}.best")

    @property
    def log(self) -> Path:
        """The run log."""
        return self.log_dir.resolve() / f"{self.run_id}.jsonl"

    @property
    def state_series(self) -> str:
        """Name under which the training states are a series of checkpoints of their own."""
        return f"{self.run_id}-state"

    def policy_uri(self, step: int) -> str:
        """Return the address of the policy checkpoint of ``step``."""
        return checkpoint_uri(self.run_id, step)

    def state_uri(self, step: int) -> str:
        """Return the address of the training state of ``step``."""
        return checkpoint_uri(self.state_series, step)

    def policies(self) -> dict[int, str]:
        """Return the addresses of the policy checkpoints on disk by step, unchecked."""
        return list_checkpoints(self.run_id, artifacts_root=self.artifacts_root)

    def states(self) -> dict[int, str]:
        """Return the addresses of the training states on disk by step, unchecked."""
        return list_checkpoints(self.state_series, artifacts_root=self.artifacts_root)

    def read_card(self) -> Mapping[str, Any] | None:
        """Return the run's card, or None if it has none or a damaged one."""
        return _read_card(self.card)

    def write_card(self, *, status: RunStatus, fingerprint: str, config: Mapping[str, Any]) -> None:
        """Write the run's card durably."""
        atomic_write_json(
            self.card,
            {
                "format": CARD_FORMAT,
                "run_id": self.run_id,
                "status": status,
                "config_fingerprint": fingerprint,
                "config": dict(config),
            },
        )

    def prune_states(self, keep: int) -> None:
        """Delete all training states but the newest ``keep``."""
        prune_checkpoints(self.state_series, artifacts_root=self.artifacts_root, keep_last=keep)

    def delete_results(self) -> None:
        """Delete the run's results; its log stays, and the next one moves it aside."""
        for uri in [*self.states().values(), *self.policies().values()]:
            payload = resolve_uri(uri, artifacts_root=self.artifacts_root)
            for beside in (policy_path, pending_path, sidecar_path):
                beside(payload).unlink(missing_ok=True)
            payload.unlink(missing_ok=True)
        for path in (self.curve, self.card, self.best):
            path.unlink(missing_ok=True)

    @contextmanager
    def locked(self) -> Generator[None]:
        """Hold the run for this process, and remove what killed writers of its files left.

        Raises:
            NotReadyError: Another process is training this very run.
            StorageError: The folder cannot be written.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            file = (self.folder / f".{self.run_id}.lock").open("w")
        except OSError as error:
            raise StorageError(
                error.errno,
                f"{self.folder}: expected a writable folder, got '{error.strerror}'; choose "
                "another artifacts_root",
            ) from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise NotReadyError(
                    f"run {self.run_id}: expected no other process to train it, got a lock on "
                    f"{file.name}; wait for that process or end it."
                ) from error
            own = (f"{self.run_id}_step", f"{self.state_series}_step", f"{self.run_id}.")
            remove_temporaries(self.folder, prefixes=own)
            yield


def unfinished_runs(folder: Path, *, fingerprint: str, other_than: str) -> list[str]:
    """Return the ids of other unfinished runs of one configuration that could be resumed.

    Such a run was made by other code or other packages, since its id differs.
    """
    found: list[str] = []
    for path in sorted(folder.glob("*.run.json")):
        card = _read_card(path)
        if card is None or card["run_id"] == other_than:
            continue
        same = card["config_fingerprint"] == fingerprint and card["status"] == "running"
        if same and any(folder.glob(f"{card['run_id']}-state_step*.pt")):
            found.append(str(card["run_id"]))
    return found


def _read_card(path: Path) -> Mapping[str, Any] | None:
    """Return a card, or None if the file is missing or no card."""
    try:
        content: object = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(content, dict):
        return None
    card = cast("dict[str, Any]", content)
    names = ("run_id", "status", "config_fingerprint")
    complete = card.get("format") == CARD_FORMAT and all(name in card for name in names)
    return card if complete else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one call of `train` works with; ``upstream_list`` reproduces upstream's list of returns.

    Filter, evaluation, progress and version of the task are None where there is none.
    """

    config: EgoAHTConfig
    context: RunContext
    env: Any
    partner: PartnerLike
    factory: TrainerFactory
    driver: AnyDriver | None
    evaluator: Evaluator | None
    progress: ProgressCallback | None
    upstream_list: bool
    task_version: int | None = None
    watch: EvaluationWatch | None = None
    validator: Evaluator | None = None

    @property
    def files(self) -> RunFiles:
        """Its paths."""
        config = self.config
        return RunFiles(
            run_id=self.context.run_id,
            artifacts_root=config.artifacts_root,
            log_dir=config.log_dir,
        )

    def write_card(self, status: RunStatus) -> None:
        """Write the run's card."""
        self.files.write_card(
            status=status,
            fingerprint=self.context.config_fingerprint or "",
            config=self.config.model_dump(mode="json"),
        )

    def outcome(
        self,
        status: Literal["completed", "already_finished"],
        frames: int,
        resumed_from: int | None = None,
    ) -> RunOutcome:
        """Return what a call of `cadenza.aht.train.train` did."""
        return RunOutcome(
            status=status,
            frames=frames,
            resumed_from=resumed_from,
            log_path=self.files.log,
            curve_path=self.files.curve,
            best_policy=self.files.best if self.config.evaluation.validation else None,
        )

    def stored_state(self) -> "StoredState | None":
        """Return the state to resume from, or None if the run left none.

        Raises:
            ConfigurationError: Only runs of this configuration by other code could be resumed.
        """
        stored, run_id = load_newest_state(self.files), self.context.run_id
        if stored is None and self.files.read_card() is None:
            fingerprint = self.context.config_fingerprint or ""
            others = unfinished_runs(self.files.folder, fingerprint=fingerprint, other_than=run_id)
            if others:
                raise ConfigurationError(
                    f"train: expected an unfinished run {run_id} to resume, got only "
                    f"{', '.join(others)} of the same configuration, made by other code or "
                    "packages; check that version out to resume it, or start again without resume."
                )
        return stored

    @property
    def has_ended(self) -> bool:
        """Whether its card says so."""
        card = self.files.read_card()
        return card is not None and card["status"] == "finished"

    def is_finished_at(self, step: int) -> bool:
        """Return whether the run ended and ``step`` is its last one, nothing being damaged."""
        last = self.config.total_iterations * self.config.env.num_envs
        return self.has_ended and self.files.curve.is_file() and step == last

    def refuse_to_replace(self, *, resume: bool) -> None:
        """Raise if the run has results that starting anew would replace.

        Raises:
            ConfigurationError: It has.
        """
        policies = self.files.policies()
        # A kill within the first save leaves one policy without a state: it is written again.
        if not policies or (resume and len(policies) == 1 and not self.has_ended):
            return
        advice = (
            "there is no training state to resume from; pass overwrite (--overwrite) to delete "
            "the run and start again."
            if resume
            else "pass resume (--resume) to continue the run, or overwrite (--overwrite) to "
            "delete it and start again."
        )
        raise ConfigurationError(
            f"train: run {self.context.run_id} already has {len(policies)} checkpoint(s) in "
            f"{self.files.folder}; {advice}"
        )


def extra_facts(cfg: EgoAHTConfig, partner: PartnerLike, fingerprint: str) -> dict[str, str]:
    """Return the facts that go on every line of the log."""
    facts = {
        "task": cfg.env.task,
        "partner_class": cfg.partner_class,
        "config_hash": fingerprint,
    }
    partner_id = partner_id_of(partner)
    if partner_id is not None:
        facts["partner_id"] = partner_id
    has_weights = getattr(partner.spec, "weights_uri", None) is not None
    if cfg.partners or has_weights:  # covers every partner, and the bytes of the weights
        facts["partner_content_id"] = str(getattr(partner.spec, "content_id", ""))
    return facts


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredState:
    """A training state read back, and what is damaged: newer states that were skipped, and why."""

    step: int
    content: Mapping[str, Any]
    policy_paths: tuple[Path, ...]
    skipped: tuple[str, ...]

    @property
    def policy_digests(self) -> Mapping[int, str]:
        """SHA-256 of those policy checkpoints by step."""
        return self.content["policies"]


def load_newest_state(files: RunFiles) -> StoredState | None:
    """Return the newest intact training state of a run, or None if it has none at all.

    Raises:
        CheckpointError: There are states, but none is intact; the message says why.
    """
    skipped: list[str] = []
    for step, uri in sorted(files.states().items(), reverse=True):
        try:
            return _load_state(files, step, uri, tuple(skipped))
        except CheckpointError as error:
            skipped.append(f"step {step}: {error}")
    if skipped:
        raise CheckpointError(
            f"run {files.run_id}: expected an intact training state to resume from, got "
            f"{'; '.join(skipped)}. Restore the files, or start the run again with overwrite."
        )
    return None


def _load_state(files: RunFiles, step: int, uri: str, skipped: tuple[str, ...]) -> StoredState:
    """Return one state after checking it and the policy checkpoints before it."""
    root = files.artifacts_root
    content, metadata = load_checkpoint(uri=uri, artifacts_root=root)
    if content.get("format") != STATE_FORMAT or metadata.run_id != files.run_id:
        raise CheckpointError(
            f"{uri}: expected a training state of run {files.run_id} in format {STATE_FORMAT}, "
            f"got format {content.get('format')!r} of run {metadata.run_id}."
        )
    if metadata.step != step:
        raise CheckpointError(
            f"{uri}: expected the training state of step {step}, got that of step {metadata.step}; "
            "one file was copied over another."
        )
    for policy_step, digest in content["policies"].items():
        policy_uri = files.policy_uri(policy_step)
        if read_metadata(uri=policy_uri, artifacts_root=root).sha256 != digest:
            raise CheckpointError(
                f"{policy_uri}: expected SHA-256 {digest} as in the training state, got another "
                "checkpoint."
            )
    paths = [resolve_uri(files.policy_uri(s), artifacts_root=root) for s in content["policies"]]
    return StoredState(step=step, content=content, policy_paths=tuple(paths), skipped=skipped)
