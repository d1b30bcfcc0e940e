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
Contract:   a policy carries the task contract that the page of its dataset names. A second dataset,
            and a policy to start from, are refused if they are of another one.
Axes:       O = state, A = action, n = batch, c = steps of a chunk.
"""

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cadenza.benchmark.jobs.dataset_files import (
    ACTION,
    STATE,
    feature_shapes,
    read_contract,
    read_frames,
    read_page,
    require_one_contract,
)
from cadenza.benchmark.output_folder import JobFolder, open_job_folder
from cadenza.core.checkpoints import (
    LOCAL_URI_SCHEME,
    CheckpointMetadata,
    load_checkpoint,
    load_weights_file,
    pending_path,
    save_checkpoint,
)
from cadenza.core.device import deterministic_algorithms, flushed_denormals, single_torch_thread
from cadenza.core.errors import CheckpointError, ConfigurationError, InputError, refuse
from cadenza.core.files import sha256_bytes, tree_digest
from cadenza.core.lerobot_dataset import read_info
from cadenza.core.provenance import GIT_SHA_UNKNOWN, source_digest
from cadenza.core.seeding import Substream, derive_substream
from cadenza.learn.agents.imitation import InputScale, TorchAdam, masked_mean, perceptron
from cadenza.learn.nn.initialization import initialized_linear
from cadenza.learn.nn.layer_kinds import layers_of
from cadenza.learn.nn.portable import (
    POLICY_KEY,
    SUFFIX,
    Output,
    PortableNetwork,
    flat_network,
    save_policy_file,
)
from cadenza.learn.nn.running_normalizer import CLIP, EPSILON

#: Step size of Adam at the first update.
LEARNING_RATE: Final = 2e-3
#: Hidden layers of every policy type, weakest first.
RUNGS: Final[Mapping[str, tuple[int, ...]]] = {"bc": (64, 64), "bc_large": (256, 256)}
#: Updates between two saves: about a second of work.
SAVE_EVERY: Final = 1000
#: The trained policy inside the job's folder.
POLICY: Final = "policy.pt"
#: The same as a policy file.
POLICY_FILE: Final = f"policy{SUFFIX}"
#: What a training that was stopped goes on from, inside the job's work folder.
SAVE: Final = "state.pt"
#: What the sidecar of a policy says about it, and the result repeats.
_FACTS: Final = ("rung", "task", "features", "loss", "frames", "dataset_episodes")
_LOGGER = logging.getLogger(__name__)


def new_clone(
    scale: Tensor, hidden: Sequence[int], action_dim: int, generator: torch.Generator
) -> nn.Sequential:
    """Return a network from states, (..., O), to actions, (..., A), not clipped.

    ``scale`` are mean and spread of states, (2, O).
    """
    inputs = InputScale(scale.shape[1], CLIP)
    inputs.mean, inputs.spread = scale
    linear = partial(initialized_linear, gain=1.0, generator=generator)
    widths = [scale.shape[1], *hidden, action_dim]
    return nn.Sequential(inputs, *perceptron(widths, linear, lambda _: [nn.ReLU()]))


def clone_policy(clone: nn.Sequential, low: Tensor, high: Tensor, **fields: Any) -> PortableNetwork:
    """Return the policy; ``low`` and ``high`` are the bounds of actions, (A,)."""
    output = Output(kind="mean", low=low.numpy(), high=high.numpy())
    width = len(cast("InputScale", clone[0]).mean)
    return flat_network(layers_of(clone), width, output, **fields)


def state_scale(states: Tensor) -> Tensor:
    """Return mean and spread, (2, O), of states (..., O)."""
    flat = states.flatten(0, -2)
    return torch.stack((flat.mean(0), torch.sqrt(flat.var(0) + EPSILON)))


def cloning_loss(predicted: Tensor, done: Tensor, valid: Tensor | None = None) -> Tensor:
    """Return the mean squared error of actions (..., A) over the ``valid`` steps, (...), or all."""
    return masked_mean((predicted - done).square().sum(-1), valid)


def cosine_rate(step: int, steps: int, first: float = LEARNING_RATE) -> float:
    """Return the step size of update ``step`` of ``steps``."""
    return first * 0.5 * (1.0 + math.cos(math.pi * step / steps))


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
        for name, is_met, expected, got in self._checks():
            if not is_met:
                refuse(ConfigurationError, name, expected=expected, got=got)

    def _checks(self) -> Iterator[tuple[str, bool, str, object]]:
        """Yield flags, whether they are in order, what they should be and what they are."""
        yield "--rung", self.rung in RUNGS, f"one of {', '.join(RUNGS)}", repr(self.rung)
        for name, value, least in (
            ("--steps", self.steps, 1),
            ("--batch-size", self.batch_size, 1),
            ("--seed", self.seed, 0),
        ):
            yield name, value >= least, f"a number >= {least}", value
        ratio = self.mix_ratio
        yield "--mix-ratio", 0.0 <= ratio <= 1.0, "a share in [0, 1]", ratio
        for name, value in (
            ("--learning-rate", self.learning_rate),
            ("--max-epochs", self.max_epochs),
        ):
            yield name, value is None or 0.0 < value < math.inf, "> 0 and finite", value
        first, listed = self.first_episodes, len(self.episodes)
        yield (
            "--first-episodes",
            first is None or (first >= 1 and not listed),
            "a number >= 1 and no --episodes beside it",
            f"{first} and {listed} episodes",
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


def load_data(training: Training) -> TrainingData:
    """Return the steps to learn from."""
    frames = read_frames(training.dataset)
    numbers, chosen = np.unique(frames.episodes), np.array(training.episodes, dtype=np.int64)
    if training.first_episodes is not None:
        chosen = numbers[: training.first_episodes]
    elif not training.episodes:
        chosen = numbers
    if len(missing := np.setdiff1d(chosen, numbers)):
        expected = f"episodes of {training.dataset} (0 to {int(numbers.max())})"
        refuse(ConfigurationError, "--episodes", expected=expected, got=int(missing[0]))
    counts = np.isin(frames.episodes, chosen)
    states, actions = [frames.states[counts]], [frames.actions[counts]]
    if training.mix is not None:
        folders = (training.dataset, training.mix)
        first, second = (feature_shapes(read_info(each), source=each) for each in folders)
        if first != second:
            expected, do = f"the features of --dataset, {first}", "blend datasets of one task"
            refuse(ConfigurationError, "--mix", expected=expected, got=str(second), do=do)
        require_one_contract("--mix", folders)
        mixed = read_frames(training.mix)
        states.append(mixed.states)
        actions.append(mixed.actions)
    return TrainingData(
        states=torch.tensor(np.concatenate(states)),
        actions=torch.tensor(np.concatenate(actions)),
        first=len(states[0]),
        episodes=len(np.unique(chosen)),
    )


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


def train(training: Training) -> dict[str, Any]:
    """Train and return the result.

    Raises:
        CheckpointError: ``init`` is missing, damaged or of another task contract.
        ConfigurationError: A flag does not fit the data, or the folder belongs to another job.
        IntegrityError: A dataset is damaged.
        NotReadyError: Another process works in the folder.
    """
    with single_torch_thread(), flushed_denormals(), deterministic_algorithms():
        data = load_data(training)
        clone, init_sha256 = _first_clone(training, data)
        mix_sha256 = None if training.mix is None else tree_digest(training.mix)
        digests = {"dataset_sha256": tree_digest(training.dataset), "mix_sha256": mix_sha256}
        request = {**digests, **training.flags(), "init_sha256": init_sha256}
        with open_job_folder(training.out, "train", request, result=training.result) as folder:
            if _finished(folder) is None:
                _fit(training, data, clone, folder)
                _save(training, data, clone, folder)
            facts = cast("dict[str, Any]", _finished(folder))
            folder.drop_work()
            return folder.write_result(training.result, facts)


def _first_clone(training: Training, data: TrainingData) -> tuple[nn.Sequential, str | None]:
    """Return the clone before the first update, and the digest of ``init``."""
    seed = derive_substream("benchmark.jobs.weights", root_seed=training.seed).integer_seed()
    generator = torch.Generator().manual_seed(seed)
    hidden, actions = RUNGS[training.rung], data.actions.shape[1]
    clone = new_clone(state_scale(data.states), hidden, actions, generator)
    path, own = training.init, clone.state_dict()
    if path is None:
        return clone, None
    payload, _, digest = load_weights_file(
        uri=LOCAL_URI_SCHEME + path.name, artifacts_root=path.parent
    )
    if POLICY_KEY not in payload:
        expected = "a policy that this command trained"
        got = f"the keys {sorted(payload)}"
        refuse(CheckpointError, str(path), expected=expected, got=got, do="name another --init")
    initial = PortableNetwork.from_state_dict(payload[POLICY_KEY])
    if (contract := read_contract(training.dataset)) is not None:
        contract.require_match(str(path), initial.contract)
    given = [tensor for layer in initial.layers for tensor in layer.tensors.values()]
    shapes = [[tuple(each.shape) for each in tensors] for tensors in (own.values(), given)]
    if shapes[0] != shapes[1]:
        refuse(
            ConfigurationError,
            "--init",
            expected=f"weights of the rung {training.rung!r} for the dataset, {shapes[0]}",
            got=str(shapes[1]),
            do="start from a policy of the same rung and task, or afresh",
        )
    clone.load_state_dict(dict(zip(own, given, strict=True)))
    return clone, digest


def _fit(training: Training, data: TrainingData, clone: nn.Module, folder: JobFolder) -> None:
    """Train to the last update, from the last save if there is one."""
    counts = {"first": data.first, "second": data.second}
    updates, begin = updates_of(training, **counts), 0
    first = training.learning_rate or LEARNING_RATE
    optimizer = TorchAdam(first, clone.parameters())
    if (saved := _saved(folder.work, SAVE, folder)) is not None:
        state, begin = saved[0], saved[1].step
        clone.load_state_dict(state["clone"])
        optimizer.load_state_dict(state["optimizer"])
    stream = derive_substream("benchmark.jobs.batches", root_seed=training.seed)
    for update in range(begin, updates):
        rows = torch.tensor(batch_rows(training, update, **counts, stream=stream))
        optimizer.learning_rate = cosine_rate(update, updates, first)
        try:
            optimizer.step(policy=cloning_loss(clone(data.states[rows]), data.actions[rows]))
        except InputError:
            _refuse_divergence(update)
        if (update + 1) % SAVE_EVERY == 0 and update + 1 < updates:
            state = {"clone": clone.state_dict(), "optimizer": optimizer.state_dict()}
            _store(state, folder.work, SAVE, folder, step=update + 1)
            training.report(update + 1, updates)


def _refuse_divergence(updates: int) -> NoReturn:
    got = f"NaN or infinity after {updates} updates"
    refuse(ConfigurationError, "--learning-rate", expected="a finite loss", got=got, do="lower it")


def _save(training: Training, data: TrainingData, clone: nn.Sequential, folder: JobFolder) -> None:
    """Save the trained policy with what describes it, first as a policy file."""
    page = read_page(training.dataset)
    updates = updates_of(training, first=data.first, second=data.second)
    with torch.no_grad():
        shown = clone(data.states[: data.first])
        loss = float(cloning_loss(shown, data.actions[: data.first]))
    if not math.isfinite(loss):
        _refuse_divergence(updates)
    facts: dict[str, Any] = {
        "rung": training.rung,
        "features": {STATE: [data.states.shape[1]], ACTION: [data.actions.shape[1]]},
        "loss": loss,
        "frames": data.first,
        "dataset_episodes": data.episodes,
    }
    if page is not None:
        facts["task"] = page["task"]
    about = {"algorithm": training.rung, "seed": training.seed, "step": updates}
    policy = clone_policy(
        clone,
        *(data.actions.amin(0), data.actions.amax(0)),  # it never goes beyond what was shown
        task={} if page is None else {"id": page["task"]},
        seat="ego",
        contract=read_contract(training.dataset),
        facts={**about, "code_sha256": source_digest()},
    )
    save_policy_file(policy, folder.root / POLICY_FILE)
    state = {POLICY_KEY: policy.state_dict()}
    _store(state, folder.root, POLICY, folder, step=updates, seed=training.seed, extra=facts)


def _finished(folder: JobFolder) -> dict[str, Any] | None:
    """Return the facts of the trained policy; None if there is none, or a damaged one."""
    if pending_path(folder.root / POLICY).exists():  # killed while it was saved
        return None
    if (saved := _saved(folder.root, POLICY, folder)) is None:
        return None
    metadata = saved[1]
    return {
        **{name: metadata.extra.get(name) for name in _FACTS},
        "policy": {"file": POLICY, "sha256": metadata.sha256},
        "updates": metadata.step,
        "seeds": {"training": metadata.seed},
    }


def _saved(
    root: Path, name: str, folder: JobFolder
) -> tuple[dict[str, Any], CheckpointMetadata] | None:
    """Return what this job has saved as ``name``; None if there is nothing that can be used."""
    if not (root / name).exists():
        return None
    try:
        state, metadata = load_checkpoint(uri=LOCAL_URI_SCHEME + name, artifacts_root=root)
    except CheckpointError as error:
        _LOGGER.warning("training starts over: %s", error)
        return None
    if metadata.config_hash != folder.request_sha256:
        _LOGGER.warning("training starts over: %s is of another job", root / name)
        return None
    return state, metadata


def _store(
    state: Mapping[str, Any],
    root: Path,
    name: str,
    folder: JobFolder,
    *,
    step: int,
    seed: int = 0,
    extra: Mapping[str, Any] | None = None,
) -> None:
    """Save a checkpoint whose bytes follow from the request and the code alone."""
    metadata = CheckpointMetadata(
        run_id=folder.request_sha256[:16],
        seed=seed,
        step=step,
        git_sha=GIT_SHA_UNKNOWN,
        pyproject_hash=sha256_bytes(b""),
        config_hash=folder.request_sha256,
        extra={**(extra or {}), "code_sha256": source_digest()},
    )
    save_checkpoint(
        state_dict=state, uri=LOCAL_URI_SCHEME + name, metadata=metadata, artifacts_root=root
    )
