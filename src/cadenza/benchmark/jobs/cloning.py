"""Behaviour cloning, a job: a perceptron that learns the executed action from the ego's state.

Equations:  x_0 = clip((s - mean) / sqrt(variance + 1e-8), -10, 10), x_k = relu(W_k x_{k-1} + b_k),
            action = W_K x_{K-1} + b_K, clipped to the bounds when it is played;
            loss = mean over steps of |action - done|^2.
Step size:  Adam, falling along half a cosine: lr_t = lr_0 (1 + cos(pi t / T)) / 2.
Resume:     update t draws its batch from a stream of its own, so that weights, moments of Adam and
            t are all there is to save; they are, every `SAVE_EVERY` updates. What is damaged or of
            another request is not taken: the training starts over. Killed at any point and started
            again it ends with the same bytes.
Blend:      each batch takes its share of steps from the second dataset, rounded to the nearest
            step, the rest from the first; within a dataset each step is equally likely.
Epochs:     an epoch of a dataset has drawn as many samples from it as it has steps; the cap holds
            for each of the two, and makes the training shorter, never longer.
Axes:       O = state, A = action, n = batch, c = steps of a chunk.
"""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cadenza.benchmark.jobs.dataset_files import (
    ACTION,
    STATE,
    Frames,
    feature_shapes,
    read_frames,
    read_page,
)
from cadenza.benchmark.output_folder import JobFolder, open_job_folder
from cadenza.core.checkpoints import (
    LOCAL_URI_SCHEME,
    CheckpointMetadata,
    load_checkpoint,
    load_weights_file,
    pending_path,
    read_metadata,
    save_checkpoint,
)
from cadenza.core.device import deterministic_algorithms, flushed_denormals, single_torch_thread
from cadenza.core.errors import CheckpointError, ConfigurationError
from cadenza.core.files import sha256_bytes, tree_digest
from cadenza.core.lerobot_dataset import read_info
from cadenza.core.provenance import GIT_SHA_UNKNOWN, source_digest
from cadenza.core.seeding import Substream, derive_substream
from cadenza.learn.nn.portable import (
    POLICY_KEY,
    SUFFIX,
    Output,
    PortableNetwork,
    perceptron,
    save_policy_file,
)
from cadenza.learn.nn.running_normalizer import CLIP, EPSILON

#: Step size of Adam at the first update.
LEARNING_RATE: Final = 2e-3


class Clone(nn.Module):
    """Perceptron from states to actions that scales its inputs.

    Attributes:
        scale: Mean and spread of states, (2, O).
        layers: Linear layers, W_1 and b_1 to W_K and b_K.
    """

    def __init__(
        self, scale: Tensor, hidden: Sequence[int], action_dim: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.scale = scale
        sizes = (scale.shape[1], *hidden, action_dim)
        layers = [nn.Linear(a, b) for a, b in pairwise(sizes)]
        for layer in layers:
            nn.init.orthogonal_(layer.weight, generator=generator)
            nn.init.zeros_(layer.bias)
        self.layers: nn.ModuleList = nn.ModuleList(layers)

    def forward(self, states: Tensor) -> Tensor:
        """Return actions, (..., A), not clipped, for states (..., O)."""
        x = ((states - self.scale[0]) / self.scale[1]).clamp(-CLIP, CLIP)
        *hidden, output = self.layers
        for layer in hidden:
            x = torch.relu(layer(x))
        return output(x)

    def portable(self, low: Tensor, high: Tensor, **fields: Any) -> PortableNetwork:
        """Return the policy; ``low`` and ``high`` are the bounds of actions, (A,)."""
        output = Output(kind="mean", low=low.numpy(), high=high.numpy())
        mean, spread = self.scale
        return perceptron(
            self.ordered_parameters(), "relu", output, standardised=(mean, spread), **fields
        )

    def ordered_parameters(self) -> list[Tensor]:
        """Return W_1, b_1, ..., W_K, b_K."""
        return list(self.parameters())

    @torch.no_grad()
    def load_parameters(self, parameters: Sequence[Tensor]) -> None:
        """Copy W_1, b_1, ..., W_K, b_K of equal shapes."""
        for own, given in zip(self.ordered_parameters(), parameters, strict=True):
            own.copy_(given)


def state_scale(states: Tensor) -> Tensor:
    """Return mean and spread, (2, O), of states (..., O)."""
    flat = states.flatten(0, -2)
    return torch.stack((flat.mean(0), torch.sqrt(flat.var(0) + EPSILON)))


def cloning_loss(predicted: Tensor, done: Tensor, valid: Tensor | None = None) -> Tensor:
    """Return the mean squared error of actions (..., A) over the ``valid`` steps, (...), or all."""
    errors = ((predicted - done) ** 2).sum(-1)
    return errors.mean() if valid is None else errors[valid].mean()


def cosine_rate(step: int, steps: int, first: float = LEARNING_RATE) -> float:
    """Return the step size of update ``step`` of ``steps``."""
    return first * 0.5 * (1.0 + math.cos(math.pi * step / steps))


#: Hidden layers of every policy type, weakest first.
RUNGS: Final[Mapping[str, tuple[int, ...]]] = {"bc": (64, 64), "bc_large": (256, 256)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What to train; the flags of `cadenza job train`.

    Attributes:
        rung: Policy type, a key of `RUNGS`.
        episodes: Episodes of the first dataset that count; empty for all.
        first_episodes: How many count, from the first; None for all. Not beside ``episodes``.
        mix: Folder of the second dataset; None for none.
        mix_ratio: Share of samples drawn from ``mix``, in [0, 1].
        learning_rate: Step size of Adam at the first update; None for `LEARNING_RATE`.
        max_epochs: Most passes over either dataset; None for no cap.
        init: Checkpoint of the same rung to start from; None starts afresh.
    """

    rung: str
    dataset: Path
    episodes: tuple[int, ...] = ()
    first_episodes: int | None = None
    mix: Path | None = None
    mix_ratio: float = 0.5
    steps: int
    batch_size: int
    learning_rate: float | None = None
    max_epochs: float | None = None
    init: Path | None = None
    seed: int
    out: Path
    result: Path
    report: Callable[[int, int], None] = lambda _done, _wanted: None

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
        if self.learning_rate is not None and not 0.0 < self.learning_rate < math.inf:
            raise ConfigurationError(
                f"--learning-rate: expected > 0 and finite, got {self.learning_rate}."
            )
        if self.max_epochs is not None and not 0.0 < self.max_epochs < math.inf:
            raise ConfigurationError(
                f"--max-epochs: expected > 0 and finite, got {self.max_epochs}."
            )
        if self.first_episodes is not None and (self.first_episodes < 1 or self.episodes):
            raise ConfigurationError(
                "--first-episodes: expected a number >= 1 and no --episodes beside it, got "
                f"{self.first_episodes} and {len(self.episodes)} episodes."
            )

    def flags(self) -> dict[str, Any]:
        """Return what determines the product beside the files that are read, as JSON values."""
        moved = {} if self.learning_rate is None else {"learning_rate": self.learning_rate}
        return {
            **moved,
            "rung": self.rung,
            "episodes": list(self.episodes),
            "first_episodes": self.first_episodes,
            "mix_ratio": self.mix_ratio if self.mix else None,
            "steps": self.steps,
            "batch_size": self.batch_size,
            "max_epochs": self.max_epochs,
            "seed": self.seed,
        }


_LOGGER = logging.getLogger(__name__)

#: The trained policy inside the job's folder.
POLICY: Final = "policy.pt"
#: The same as a policy file.
POLICY_FILE: Final = f"policy{SUFFIX}"
#: What a training that was stopped goes on from, inside the job's work folder.
SAVE: Final = "state.pt"
#: What the sidecar of a policy says about it, and the result repeats.
_FACTS: Final = ("rung", "task", "features", "loss", "frames", "dataset_episodes")


def load_initial(path: Path | None) -> tuple[PortableNetwork | None, str | None]:
    """Return the policy to start from and its digest; None twice for none."""
    if path is None:
        return None, None
    payload, _, digest = load_weights_file(
        uri=LOCAL_URI_SCHEME + path.name, artifacts_root=path.parent
    )
    if POLICY_KEY not in payload:
        raise CheckpointError(
            f"{path}: expected a policy that this command trained, got the keys "
            f"{sorted(payload)}; name another --init."
        )
    return PortableNetwork.from_state_dict(payload[POLICY_KEY]), digest


def save_state(clone: Clone, optimizer: torch.optim.Adam, folder: JobFolder, done: int) -> None:
    """Save the training after ``done`` updates."""
    state = {
        "weights": [p.detach() for p in clone.ordered_parameters()],
        "optimizer": optimizer.state_dict(),
    }
    _store(state, SAVE, folder, root=folder.work, step=done, seed=0, extra={})


def restore_state(clone: Clone, optimizer: torch.optim.Adam, folder: JobFolder) -> int:
    """Load the last save of this job and return the updates done; 0 without a usable one."""
    if not (folder.work / SAVE).exists():
        return 0
    try:
        state, metadata = load_checkpoint(uri=LOCAL_URI_SCHEME + SAVE, artifacts_root=folder.work)
    except CheckpointError as error:
        _LOGGER.warning("training starts over: %s", error)
        return 0
    if metadata.config_hash != folder.request_sha256:
        _LOGGER.warning("training starts over: %s is of another job", folder.work / SAVE)
        return 0
    clone.load_parameters(state["weights"])
    optimizer.load_state_dict(state["optimizer"])
    return metadata.step


def save_policy(
    policy: PortableNetwork, folder: JobFolder, *, step: int, seed: int, facts: Mapping[str, Any]
) -> None:
    """Save the trained policy, first as a policy file."""
    save_policy_file(policy, folder.root / POLICY_FILE)
    state = {POLICY_KEY: policy.state_dict()}
    _store(state, POLICY, folder, root=folder.root, step=step, seed=seed, extra=facts)


def finished_policy(folder: JobFolder) -> dict[str, Any] | None:
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
    return {
        **{name: metadata.extra.get(name) for name in _FACTS},
        "policy": {"file": POLICY, "sha256": metadata.sha256},
        "updates": metadata.step,
        "seeds": {"training": metadata.seed},
    }


def _store(
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)  # eq=False: tensors are ambiguous
class TrainingData:
    """States (N, O) and actions (N, A): steps of the first dataset, then of the second.

    ``first`` and ``episodes`` count the steps and the episodes of the first one.
    """

    states: Tensor
    actions: Tensor
    first: int
    episodes: int

    @property
    def second(self) -> int:
        """Steps of the second dataset."""
        return len(self.states) - self.first


def load_data(training: Training) -> tuple[TrainingData, dict[str, Any]]:
    """Return the steps to learn from, and the digests of the files that they come from."""
    frames = _selected(training, read_frames(training.dataset))
    states, actions = frames.states, frames.actions
    facts: dict[str, Any] = {"dataset_sha256": tree_digest(training.dataset), "mix_sha256": None}
    if training.mix is not None:
        mixed = read_frames(training.mix)
        _require_equal_features(training.dataset, training.mix)
        states = np.concatenate((states, mixed.states))
        actions = np.concatenate((actions, mixed.actions))
        facts["mix_sha256"] = tree_digest(training.mix)
    data = TrainingData(
        states=torch.from_numpy(states),  # pyright: ignore[reportUnknownMemberType] # untyped in torch
        actions=torch.from_numpy(actions),  # pyright: ignore[reportUnknownMemberType]
        first=len(frames.states),
        episodes=len(np.unique(frames.episodes)),
    )
    return data, facts


def updates_of(training: Training, *, first: int, second: int = 0) -> int:
    """Return the updates of a training on ``first`` and ``second`` steps, its epochs capped."""
    if training.max_epochs is None:
        return training.steps
    mixed = _samples_of_second(training, second)
    drawn = ((first, training.batch_size - mixed), (second, mixed))
    most = min(training.max_epochs * steps / samples for steps, samples in drawn if samples)
    return training.steps if most >= training.steps else max(1, int(most))


def batch_rows(
    training: Training, update: int, *, first: int, second: int, stream: Substream
) -> NDArray[np.int64]:
    """Return the steps that update ``update`` learns from, (n,).

    Steps of the first dataset are numbered from 0, those of the second one from ``first``.
    """
    rng = stream.child(update).default_rng()
    mixed = _samples_of_second(training, second)
    rows = rng.integers(first, size=training.batch_size - mixed)
    if not mixed:
        return rows
    return np.concatenate((rows, first + rng.integers(second, size=mixed)))


def _samples_of_second(training: Training, second: int) -> int:
    """Return how many samples of a batch come from the second dataset, of ``second`` steps."""
    return round(training.batch_size * training.mix_ratio) if second else 0


def _selected(training: Training, frames: Frames) -> Frames:
    """Return the steps of the episodes that count."""
    if training.first_episodes is not None:
        chosen = np.unique(frames.episodes)[: training.first_episodes]
    elif training.episodes:
        chosen = np.array(training.episodes, dtype=np.int64)
    else:
        return frames
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


#: Updates between two saves: about a second of work.
SAVE_EVERY: Final = 1000


def train(training: Training) -> dict[str, Any]:
    """Train and return the result.

    Raises:
        CheckpointError: ``init`` is missing or damaged.
        ConfigurationError: A flag does not fit the data, or the folder belongs to another job.
        IntegrityError: A dataset is damaged.
        NotReadyError: Another process works in the folder.
    """
    with single_torch_thread(), flushed_denormals(), deterministic_algorithms():
        data, digests = load_data(training)
        initial, init_sha256 = load_initial(training.init)
        shapes = {STATE: [data.states.shape[1]], ACTION: [data.actions.shape[1]]}
        request = {**digests, **training.flags(), "init_sha256": init_sha256}
        clone = _new_clone(training, data, initial, shapes)
        with open_job_folder(training.out, "train", request, result=training.result) as folder:
            facts = finished_policy(folder)
            if facts is None:
                _fit(training, data, clone, folder)
                _save(training, data, clone, folder, shapes)
                facts = finished_policy(folder)
            if facts is None:
                raise CheckpointError(
                    f"{training.out}: expected the policy that was just saved, got none; another "
                    "program works in this folder, so choose another --out."
                )
            folder.drop_work()
            return folder.write_result(training.result, facts)


def _new_clone(
    training: Training,
    data: TrainingData,
    initial: PortableNetwork | None,
    shapes: Mapping[str, list[int]],
) -> Clone:
    """Return the clone before the first update."""
    seed = derive_substream("benchmark.jobs.weights", root_seed=training.seed).integer_seed()
    generator = torch.Generator().manual_seed(seed)
    if initial is None:
        scale, given_weights = state_scale(data.states), []
    else:
        first, *others = initial.layers
        scale = torch.stack((first.tensors["mean"], first.tensors["spread"]))
        given_weights = [tensor for layer in others for tensor in layer.tensors.values()]
    if scale.shape[1] != shapes[STATE][0]:
        raise ConfigurationError(
            f"--init: expected a policy of {shapes[STATE][0]} scaled observations, as in the "
            f"dataset, got one of {scale.shape[1]}."
        )
    clone = Clone(scale, RUNGS[training.rung], shapes[ACTION][0], generator)
    if initial is not None:
        own = [tuple(p.shape) for p in clone.ordered_parameters()]
        given = [tuple(p.shape) for p in given_weights]
        if own != given:
            raise ConfigurationError(
                f"--init: expected weights of the rung {training.rung!r}, {own}, got {given}; "
                "start from a policy of the same rung, or afresh."
            )
        clone.load_parameters(given_weights)
    return clone


def _fit(training: Training, data: TrainingData, clone: Clone, folder: JobFolder) -> None:
    """Train to the last update, from the last save if there is one."""
    updates = updates_of(training, first=data.first, second=data.second)
    optimizer = torch.optim.Adam(clone.parameters())
    begin = restore_state(clone, optimizer, folder)
    stream = derive_substream("benchmark.jobs.batches", root_seed=training.seed)
    for update in range(begin, updates):
        rows = torch.from_numpy(  # pyright: ignore[reportUnknownMemberType]
            batch_rows(training, update, first=data.first, second=data.second, stream=stream)
        )
        loss = cloning_loss(clone(data.states[rows]), data.actions[rows])
        optimizer.zero_grad()
        loss.backward()  # pyright: ignore[reportUnknownMemberType] # untyped in torch
        for group in optimizer.param_groups:
            group["lr"] = cosine_rate(update, updates, training.learning_rate or LEARNING_RATE)
        optimizer.step()  # pyright: ignore[reportUnknownMemberType]
        if (update + 1) % SAVE_EVERY == 0 and update + 1 < updates:
            _require_finite(clone, update + 1)
            save_state(clone, optimizer, folder, update + 1)
            training.report(update + 1, updates)
    _require_finite(clone, updates)


def _require_finite(clone: Clone, done: int) -> None:
    if not all(torch.isfinite(one).all() for one in clone.ordered_parameters()):
        raise ConfigurationError(
            f"expected finite weights after {done} updates, got NaN or infinity: the training "
            "diverged; lower --learning-rate."
        )


def _save(
    training: Training,
    data: TrainingData,
    clone: Clone,
    folder: JobFolder,
    shapes: Mapping[str, list[int]],
) -> None:
    """Save the trained policy with what describes it."""
    page = read_page(training.dataset)
    low, high = _bounds(data.actions)
    with torch.no_grad():
        loss = float(cloning_loss(clone(data.states[: data.first]), data.actions[: data.first]))
    facts: dict[str, Any] = {
        "rung": training.rung,
        "features": dict(shapes),
        "loss": loss,
        "frames": data.first,
        "dataset_episodes": data.episodes,
    }
    if page is not None:
        facts["task"] = page["task"]
    updates = updates_of(training, first=data.first, second=data.second)
    about = {"algorithm": training.rung, "seed": training.seed, "step": updates}
    policy = clone.portable(
        low,
        high,
        task={} if page is None else {"id": page["task"]},
        seat="ego",
        facts={**about, "code_sha256": source_digest()},
    )
    save_policy(policy, folder, step=updates, seed=training.seed, facts=facts)


def _bounds(actions: Tensor) -> tuple[Tensor, Tensor]:
    """Return the extremes of the shown actions, (A,) each: a clone never goes beyond them."""
    return actions.amin(0), actions.amax(0)
