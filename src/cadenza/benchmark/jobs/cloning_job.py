"""Training of a clone as a job: blend of two datasets, capped epochs, exact resumption.

Blend:    each batch takes its share of steps from the second dataset, rounded to the nearest step,
          the rest from the first; within a dataset each step is equally likely.
Epochs:   an epoch has shown as many samples as the first dataset has steps; a cap on epochs makes
          the training shorter, never longer.
Resume:   update t draws its batch from a stream of its own, so that weights, moments of Adam and t
          are all there is to save; they are, every `SAVE_EVERY` updates.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cadenza.benchmark.jobs.cloning import Clone, cloning_loss, cosine_rate, state_moments
from cadenza.benchmark.jobs.dataset_files import (
    ACTION,
    STATE,
    Frames,
    feature_shapes,
    read_frames,
    read_info,
    read_page,
)
from cadenza.benchmark.jobs.job_folder import JobFolder, open_job_folder
from cadenza.benchmark.torch_threads import single_torch_thread
from cadenza.core.checkpoints import (
    LOCAL_URI_SCHEME,
    CheckpointMetadata,
    load_checkpoint,
    pending_path,
    read_metadata,
    save_checkpoint,
)
from cadenza.core.device import deterministic_algorithms
from cadenza.core.errors import CheckpointError, ConfigurationError
from cadenza.core.files import sha256_bytes
from cadenza.core.provenance import GIT_SHA_UNKNOWN
from cadenza.core.seeding import Substream, derive_substream
from cadenza.core.source_identity import source_digest
from cadenza.core.tree_digest import tree_digest
from cadenza.learn.nn.mlp_policy import MLP_POLICY_KEY, MlpPolicy

_LOGGER = logging.getLogger(__name__)

#: Hidden layers of every policy type, weakest first.
RUNGS: Final[Mapping[str, tuple[int, ...]]] = {"bc": (64, 64), "bc_large": (256, 256)}
#: Updates between two saves: about a second of work.
SAVE_EVERY: Final = 1000
#: The trained policy inside the job's folder.
POLICY: Final = "policy.pt"
_STATE: Final = "state.pt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What to train.

    Attributes:
        rung: Policy type, a key of `RUNGS`.
        dataset: Folder of the first dataset.
        episodes: Episodes of it that count; empty for all.
        mix: Folder of the second dataset; None for none.
        mix_ratio: Share of samples drawn from ``mix``, in [0, 1].
        steps: Updates.
        batch_size: Samples per update.
        max_epochs: Most epochs; None for no cap.
        init: Checkpoint of the same rung to start from; None starts afresh.
        seed: Seed of weights and batches.
        out: Folder of the job.
        result: Result file.
    """

    rung: str
    dataset: Path
    episodes: tuple[int, ...] = ()
    mix: Path | None = None
    mix_ratio: float = 0.5
    steps: int
    batch_size: int
    max_epochs: float | None = None
    init: Path | None = None
    seed: int
    out: Path
    result: Path

    def __post_init__(self) -> None:
        if self.rung not in RUNGS:
            raise ConfigurationError(
                f"--rung: expected one of {', '.join(RUNGS)}, got {self.rung!r}."
            )
        if self.steps < 1 or self.batch_size < 1 or self.seed < 0:
            raise ConfigurationError(
                "expected --steps >= 1, --batch-size >= 1 and --seed >= 0, got "
                f"{self.steps}, {self.batch_size} and {self.seed}."
            )
        if not 0.0 <= self.mix_ratio <= 1.0:
            raise ConfigurationError(
                f"--mix-ratio: expected a share in [0, 1], got {self.mix_ratio}."
            )
        if self.max_epochs is not None and not self.max_epochs > 0.0:
            raise ConfigurationError(f"--max-epochs: expected > 0, got {self.max_epochs}.")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)  # eq=False: tensors are ambiguous
class _Data:
    """Steps to learn from: those of the first dataset, then those of the second."""

    states: Tensor
    actions: Tensor
    first: int
    episodes: int  # of the first dataset

    @property
    def second(self) -> int:
        """Steps of the second dataset."""
        return len(self.states) - self.first


def train(training: Training) -> dict[str, Any]:
    """Train and return the result.

    Raises:
        CheckpointError: ``init`` is missing or damaged.
        ConfigurationError: A flag does not fit the data, or the folder belongs to another job.
        IntegrityError: A dataset is damaged.
        NotReadyError: Another process works in the folder.
        StorageError: The file system refused.
    """
    with single_torch_thread(), deterministic_algorithms():
        data, data_facts = _load_data(training)
        initial, init_sha256 = _load_initial(training)
        shapes = {STATE: [data.states.shape[1]], ACTION: [data.actions.shape[1]]}
        request = {
            **data_facts,
            "rung": training.rung,
            "episodes": list(training.episodes),
            "mix_ratio": training.mix_ratio if training.mix else None,
            "steps": training.steps,
            "batch_size": training.batch_size,
            "max_epochs": training.max_epochs,
            "init_sha256": init_sha256,
            "seed": training.seed,
        }
        clone = _new_clone(training, data, initial, shapes)
        with open_job_folder(training.out, "train", request) as folder:
            facts = _finished(folder)
            if facts is None:
                _fit(training, data, clone, folder)
                _save_policy(training, clone, folder, shapes, data)
                facts = _finished(folder)
            if facts is None:
                raise CheckpointError(
                    f"{training.out}: expected the policy that was just saved, got none; another "
                    "program works in this folder, so choose another --out."
                )
            folder.drop_work()
            return folder.write_result(training.result, facts)


def updates_of(training: Training, frames: int) -> int:
    """Return the updates of a training on ``frames`` steps, its cap on epochs applied."""
    if training.max_epochs is None:
        return training.steps
    return min(training.steps, max(1, int(training.max_epochs * frames / training.batch_size)))


def batch_rows(
    training: Training, update: int, *, first: int, second: int, stream: Substream
) -> NDArray[np.int64]:
    """Return the steps that update ``update`` learns from, (n,).

    Args:
        training: Its settings.
        update: Number of the update.
        first: Steps of the first dataset, numbered from 0.
        second: Steps of the second one, numbered from ``first``.
        stream: Root of the draws.
    """
    rng = stream.child(update).default_rng()
    from_second = round(training.batch_size * training.mix_ratio) if second else 0
    rows = rng.integers(first, size=training.batch_size - from_second)
    if not from_second:
        return rows
    return np.concatenate((rows, first + rng.integers(second, size=from_second)))


def _load_data(training: Training) -> tuple[_Data, dict[str, Any]]:
    """Return the steps to learn from, and what identifies them."""
    frames = _selected(training, read_frames(training.dataset))
    states, actions = frames.states, frames.actions
    facts: dict[str, Any] = {"dataset_sha256": tree_digest(training.dataset), "mix_sha256": None}
    if training.mix is not None:
        mixed = read_frames(training.mix)
        _require_equal_features(training.dataset, training.mix)
        states = np.concatenate((states, mixed.states))
        actions = np.concatenate((actions, mixed.actions))
        facts["mix_sha256"] = tree_digest(training.mix)
    data = _Data(
        states=torch.from_numpy(states),  # pyright: ignore[reportUnknownMemberType] # untyped in torch
        actions=torch.from_numpy(actions),  # pyright: ignore[reportUnknownMemberType]
        first=len(frames.states),
        episodes=len(np.unique(frames.episodes)),
    )
    return data, facts


def _selected(training: Training, frames: Frames) -> Frames:
    """Return the steps of the episodes that count."""
    if not training.episodes:
        return frames
    chosen = np.array(training.episodes, dtype=np.int64)
    missing = np.setdiff1d(chosen, frames.episodes)
    if len(missing):
        raise ConfigurationError(
            f"--episodes: expected episodes of {training.dataset} (0 to "
            f"{int(frames.episodes.max())}), got {int(missing[0])}."
        )
    mask = np.isin(frames.episodes, chosen)
    return Frames(
        states=frames.states[mask], actions=frames.actions[mask], episodes=frames.episodes[mask]
    )


def _require_equal_features(first: Path, second: Path) -> None:
    shapes = [feature_shapes(read_info(root), source=root) for root in (first, second)]
    if shapes[0] != shapes[1]:
        raise ConfigurationError(
            f"--mix: expected the features of --dataset, {shapes[0]}, got {shapes[1]}; blend "
            "datasets of one task and number of robots."
        )


def _load_initial(training: Training) -> tuple[MlpPolicy | None, str | None]:
    """Return the policy to start from and its digest."""
    if training.init is None:
        return None, None
    source = LOCAL_URI_SCHEME + training.init.name
    payload, metadata = load_checkpoint(uri=source, artifacts_root=training.init.parent)
    portable = payload.get(MLP_POLICY_KEY)
    if not isinstance(portable, dict):
        raise CheckpointError(
            f"{training.init}: expected a policy that this command trained, got the keys "
            f"{sorted(payload)}; name another --init."
        )
    return MlpPolicy.from_state_dict(cast("dict[str, Any]", portable)), metadata.sha256


def _new_clone(
    training: Training, data: _Data, initial: MlpPolicy | None, shapes: Mapping[str, list[int]]
) -> Clone:
    """Return the clone before the first update."""
    seed = derive_substream("benchmark.jobs.weights", root_seed=training.seed).integer_seed()
    generator = torch.Generator().manual_seed(seed)
    moments = state_moments(data.states) if initial is None else initial.moments
    if moments is None or moments.shape[1] != shapes[STATE][0]:
        raise ConfigurationError(
            f"--init: expected a policy of {shapes[STATE][0]} scaled observations, as in the "
            f"dataset, got one of {None if moments is None else moments.shape[1]}."
        )
    clone = Clone(moments, RUNGS[training.rung], shapes[ACTION][0], generator)
    if initial is not None:
        own = [tuple(p.shape) for p in clone.ordered_parameters()]
        given = [tuple(p.shape) for p in initial.weights]
        if own != given:
            raise ConfigurationError(
                f"--init: expected weights of the rung {training.rung!r}, {own}, got {given}; "
                "start from a policy of the same rung, or afresh."
            )
        clone.load_parameters(initial.weights)
    return clone


def _fit(training: Training, data: _Data, clone: Clone, folder: JobFolder) -> None:
    """Train to the last update, from the last save if there is one."""
    updates = updates_of(training, data.first)
    optimizer = torch.optim.Adam(clone.parameters())
    begin = _restore(clone, optimizer, folder)
    stream = derive_substream("benchmark.jobs.batches", root_seed=training.seed)
    for update in range(begin, updates):
        rows = torch.from_numpy(  # pyright: ignore[reportUnknownMemberType]
            batch_rows(training, update, first=data.first, second=data.second, stream=stream)
        )
        loss = cloning_loss(clone(data.states[rows]), data.actions[rows])
        optimizer.zero_grad()
        loss.backward()  # pyright: ignore[reportUnknownMemberType] # untyped in torch
        for group in optimizer.param_groups:
            group["lr"] = cosine_rate(update, updates)
        optimizer.step()  # pyright: ignore[reportUnknownMemberType]
        if (update + 1) % SAVE_EVERY == 0 and update + 1 < updates:
            _save_state(clone, optimizer, folder, update + 1)


def _save_state(clone: Clone, optimizer: torch.optim.Adam, folder: JobFolder, done: int) -> None:
    state = {
        "weights": [p.detach() for p in clone.ordered_parameters()],
        "optimizer": optimizer.state_dict(),
    }
    _save(state, _STATE, folder, root=folder.work, step=done, seed=0, extra={})


def _restore(clone: Clone, optimizer: torch.optim.Adam, folder: JobFolder) -> int:
    """Load the last save of this job and return the updates done; 0 without a usable one."""
    if not (folder.work / _STATE).exists():
        return 0
    try:
        state, metadata = load_checkpoint(uri=LOCAL_URI_SCHEME + _STATE, artifacts_root=folder.work)
    except CheckpointError as error:
        _LOGGER.warning("training starts over: %s", error)
        return 0
    if metadata.config_hash != folder.request_sha256:
        _LOGGER.warning("training starts over: %s is of another job", folder.work / _STATE)
        return 0
    clone.load_parameters(state["weights"])
    optimizer.load_state_dict(state["optimizer"])
    return metadata.step


def _save_policy(
    training: Training,
    clone: Clone,
    folder: JobFolder,
    shapes: Mapping[str, list[int]],
    data: _Data,
) -> None:
    """Save the trained policy with what describes it."""
    page = read_page(training.dataset)
    low, high = _bounds(data.actions)
    with torch.no_grad():
        loss = float(cloning_loss(clone(data.states[: data.first]), data.actions[: data.first]))
    extra: dict[str, Any] = {
        "rung": training.rung,
        "features": dict(shapes),
        "loss": loss,
        "frames": data.first,
        "dataset_episodes": data.episodes,
    }
    if page is not None:
        extra["task"] = page["task"]
    _save(
        {MLP_POLICY_KEY: clone.portable(low, high).state_dict()},
        POLICY,
        folder,
        root=folder.root,
        step=updates_of(training, data.first),
        seed=training.seed,
        extra=extra,
    )


def _bounds(actions: Tensor) -> tuple[Tensor, Tensor]:
    """Return the extremes of the shown actions, (A,) each: a clone never goes beyond them."""
    return actions.amin(0), actions.amax(0)


def _save(
    state: Mapping[str, Any],
    name: str,
    folder: JobFolder,
    *,
    root: Path,
    step: int,
    seed: int,
    extra: Mapping[str, Any],
) -> None:
    """Save a checkpoint whose bytes follow from the request and the code alone."""
    metadata = CheckpointMetadata(
        run_id=folder.request_sha256[:16],
        seed=seed,
        step=step,
        git_sha=GIT_SHA_UNKNOWN,
        pyproject_hash=sha256_bytes(b""),
        config_hash=folder.request_sha256,
        extra={**extra, "code_sha256": source_digest()},
    )
    save_checkpoint(
        state_dict=state, uri=LOCAL_URI_SCHEME + name, metadata=metadata, artifacts_root=root
    )


def _finished(folder: JobFolder) -> dict[str, Any] | None:
    """Return the facts of the trained policy; None if there is none, or a damaged one."""
    path = folder.root / POLICY
    if not path.exists() or pending_path(path).exists():  # else killed while it was saved
        return None
    try:
        metadata = read_metadata(uri=LOCAL_URI_SCHEME + POLICY, artifacts_root=folder.root)
    except CheckpointError as error:
        _LOGGER.warning("training starts over: %s", error)
        return None
    if metadata.config_hash != folder.request_sha256:
        _LOGGER.warning("training starts over: %s is of another job", path)
        return None
    facts = {
        name: metadata.extra.get(name)
        for name in ("rung", "task", "features", "loss", "frames", "dataset_episodes")
    }
    return {
        **facts,
        "policy": {"file": POLICY, "sha256": metadata.sha256},
        "updates": metadata.step,
        "seeds": {"training": metadata.seed},
    }
