"""Training of a clone as a job: killed at any point and started again it ends with the same bytes.

Resume:   update t draws its batch from a stream of its own, so that weights, moments of Adam and t
          are all there is to save; they are, every `SAVE_EVERY` updates.
"""

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor

from cadenza.benchmark.jobs.cloning import (
    LEARNING_RATE,
    Clone,
    cloning_loss,
    cosine_rate,
    state_moments,
)
from cadenza.benchmark.jobs.cloning_data import TrainingData, batch_rows, load_data, updates_of
from cadenza.benchmark.jobs.cloning_files import (
    finished_policy,
    load_initial,
    restore_state,
    save_policy,
    save_state,
)
from cadenza.benchmark.jobs.cloning_request import RUNGS, Training
from cadenza.benchmark.jobs.dataset_files import ACTION, STATE, read_page
from cadenza.benchmark.jobs.job_folder import JobFolder, open_job_folder
from cadenza.benchmark.torch_threads import flushed_denormals, single_torch_thread
from cadenza.core.device import deterministic_algorithms
from cadenza.core.errors import CheckpointError, ConfigurationError
from cadenza.core.seeding import derive_substream
from cadenza.learn.nn.mlp_policy import MlpPolicy

#: Updates between two saves: about a second of work.
SAVE_EVERY: Final = 1000


def train(training: Training) -> dict[str, Any]:
    """Train and return the result.

    Raises:
        CheckpointError: ``init`` is missing or damaged.
        ConfigurationError: A flag does not fit the data, or the folder belongs to another job.
        IntegrityError: A dataset is damaged.
        NotReadyError: Another process works in the folder.
        StorageError: The file system refused.
    """
    with single_torch_thread(), flushed_denormals(), deterministic_algorithms():
        data, digests = load_data(training)
        initial, init_sha256 = load_initial(training.init)
        shapes = {STATE: [data.states.shape[1]], ACTION: [data.actions.shape[1]]}
        request = {**digests, **training.flags(), "init_sha256": init_sha256}
        clone = _new_clone(training, data, initial, shapes)
        with open_job_folder(training.out, "train", request) as folder:
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
    initial: MlpPolicy | None,
    shapes: Mapping[str, list[int]],
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
            save_state(clone, optimizer, folder, update + 1)
            training.report(update + 1, updates)


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
    policy = clone.portable(low, high)
    save_policy(policy, folder, step=updates, seed=training.seed, facts=facts)


def _bounds(actions: Tensor) -> tuple[Tensor, Tensor]:
    """Return the extremes of the shown actions, (A,) each: a clone never goes beyond them."""
    return actions.amin(0), actions.amax(0)
