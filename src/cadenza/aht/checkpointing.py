"""Checkpoints of a run: the policy for others to load, the training state for resuming.

Order of a save:  policy file, policy checkpoint, ``checkpoint_saved`` event, training state. A
                  resume cuts the log behind that event, so a kill at any point repeats nothing and
                  loses nothing but the steps since the last state. A state holds nothing that a
                  resume changes.
Damage:           a state counts as intact if its own digest and those of all policy checkpoints
                  before it hold. A resume takes the newest intact one and reports those it skipped;
                  the steps after it are trained again, which restores what was damaged. If states
                  exist but none is intact, the resume stops with an error.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from cadenza.aht.loop_state import LoopState
from cadenza.aht.replay import observation_digest
from cadenza.aht.run import Run, RunFiles
from cadenza.aht.safety_station import SafetyStation
from cadenza.aht.types import EgoTrainer, PortableTrainer, ResumableTrainer
from cadenza.core.checkpoints import (
    CheckpointMetadata,
    load_checkpoint,
    read_metadata,
    resolve_uri,
    save_checkpoint,
)
from cadenza.core.contracts import contract_at
from cadenza.core.errors import CheckpointError
from cadenza.core.runlog import RunLogger
from cadenza.core.types import Observation
from cadenza.learn.nn.portable import POLICY_FACT, policy_path, save_policy_file

#: Version of the training state.
STATE_FORMAT: Final = "cadenza.training_state/1"


class Checkpointer:
    """Saves checkpoints of one run; of a learner without `ResumableTrainer` only the policy.

    ``policy_digests`` are the SHA-256 of the policy checkpoints so far by step, when resuming.
    """

    def __init__(
        self,
        run: Run,
        log: RunLogger,
        state: LoopState,
        trainer: EgoTrainer,
        station: SafetyStation | None,
        policy_digests: Mapping[int, str],
    ) -> None:
        self._run = run
        self._files = run.files
        self._log = log
        self._state = state
        self._trainer = trainer
        self._station = station
        self._policy_digests = dict(policy_digests)

    def save(self, obs: Observation) -> None:
        """Write policy, policy file and training state; ``obs`` is what everybody sees next.

        Raises:
            StorageError: The file system refused; earlier checkpoints are intact.
            CheckpointError: The learner's state holds what could not be read back.
        """
        root, step = self._files.artifacts_root, self._state.frames
        metadata = self._metadata(step)
        if isinstance(self._trainer, PortableTrainer):
            network = self._trainer.network(**self._policy_facts(step))
            file = resolve_uri(self._files.policy_uri(step), artifacts_root=root)
            save_policy_file(network, policy_path(file))
            metadata = replace(metadata, extra={**metadata.extra, POLICY_FACT: network.content_id})
        path = save_checkpoint(
            state_dict=self._trainer.state_dict(),
            uri=self._files.policy_uri(step),
            metadata=metadata,
            artifacts_root=root,
        )
        metadata = read_metadata(uri=self._files.policy_uri(step), artifacts_root=root)
        self._policy_digests[step] = metadata.sha256
        self._state.curve.checkpoint_paths.append(path)
        self._log.info("checkpoint_saved", step=step, path=str(path))
        self._log.offset()  # makes the event durable before the state that counts on it
        if isinstance(self._trainer, ResumableTrainer):
            save_checkpoint(
                state_dict=self._training_state(self._trainer, obs),
                uri=self._files.state_uri(step),
                metadata=self._metadata(step),
                artifacts_root=root,
            )
            self._files.prune_states(self._run.config.resume.keep)

    def _training_state(self, trainer: ResumableTrainer, obs: Observation) -> dict[str, Any]:
        state = self._state
        return {
            "format": STATE_FORMAT,
            "run_id": self._files.run_id,
            "loop": state.state_dict(),
            "trainer": trainer.training_state(),
            "safety": None if self._station is None else self._station.state_dict(),
            "observation": None if state.awaiting_reset else observation_digest(obs),
            "policies": dict(self._policy_digests),
        }

    def _policy_facts(self, step: int) -> dict[str, Any]:
        """Return what a policy file says of the task, the seat and the run."""
        env, context = self._run.config.env, self._run.context
        facts = {"algorithm": self._run.config.algo, "run_id": context.run_id, "seed": context.seed}
        return {
            "task": {"id": env.task, "version": self._run.task_version, "options": env.options},
            "seat": env.agent_uids[0],
            "contract": contract_at(self._run.env, env.agent_uids[0]),
            "facts": {**facts, "step": step},
        }

    def _metadata(self, step: int) -> CheckpointMetadata:
        context = self._run.context
        return CheckpointMetadata(
            run_id=context.run_id,
            seed=context.seed,
            step=step,
            git_sha=context.git_sha,
            pyproject_hash=context.pyproject_hash,
            config_hash=context.config_fingerprint,
            extra={"task": context.extra["task"]},
        )


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
