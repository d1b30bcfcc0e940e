"""Saving a training and going on with it later, exactly.

A `Checkpointer` saves the state of everything it is given plus the process-wide random generators,
which users' layers and environments may draw from; a `CheckpointLoader` gives it back, and training
goes on with the step after the saved one. On a CPU a run of 2N steps and a run of N steps that is
killed and resumed for N more give equal bits, if all objects with a state are among the restorees.

File:      ``checkpoint_<index>.tar``, a torch archive of tensors and plain values, with a JSON
           manifest ``checkpoint_<index>.tar.json`` (format, versions, SHA-256).
Content:   ``callback_state_dicts`` {name: state}, ``training_state`` {``bp_step``, ``bp_samples``,
           ``checkpoint_index``, ``latest_checkpoint``, ...}, ``generator_states``.
Promise:   a kill at any point leaves the old file or the new one; loading runs no code.
"""

import logging
import platform
import random
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, Protocol, cast

import numpy as np
import torch

from cadenza.core.checkpoints import (
    LOCAL_URI_SCHEME,
    CheckpointMetadata,
    load_checkpoint,
    pending_path,
    remove_checkpoint,
    save_checkpoint,
    sidecar_path,
)
from cadenza.core.checks import whole_number
from cadenza.core.errors import (
    CheckpointError,
    CheckpointKeyError,
    CheckpointNotFoundError,
    InputError,
    refuse,
)
from cadenza.core.files import make_folder, remove_temporaries
from cadenza.core.provenance import GIT_SHA_UNKNOWN, RunContext
from cadenza.learn.callback import ORDER_CHECKPOINT, Callback
from cadenza.learn.emote_files import read_emote_checkpoint
from cadenza.learn.trainer import TrainingShutdownException

#: Version of the content described above.
CONTENT_VERSION: Final = 1
_NAME: Final = re.compile(r"checkpoint_(\d+)\.tar")


def checkpoint_path(folder: Path, index: int) -> Path:
    """Return the path of a checkpoint."""
    return folder / f"checkpoint_{index}.tar"


def existing_indices(folder: Path) -> list[int]:
    """Return the indices of the checkpoints in ``folder``, rising; their content is unchecked."""
    names = (found.name for found in folder.glob("checkpoint_*.tar"))
    return sorted(int(match[1]) for name in names if (match := _NAME.fullmatch(name)))


def write_checkpoint(
    folder: Path, index: int, content: Mapping[str, Any], run: RunContext | None
) -> Path:
    """Write a checkpoint durably, over an older one of the same index; return its path.

    ``content`` is described in the module's header; the manifest tells the origin of ``run``.

    Raises:
        CheckpointError: ``content`` holds something other than tensors and plain values.
        StorageError: The file system refused; an older checkpoint is still loadable.
    """
    training, versions = content["training_state"], {"python": platform.python_version()}
    versions |= {"numpy": np.__version__, "torch": str(torch.__version__)}
    metadata = CheckpointMetadata(
        run_id=folder.resolve().parent.name if run is None else run.run_id,
        seed=-1 if run is None else run.seed,  # -1: nobody said
        step=int(training["bp_step"]),
        git_sha=GIT_SHA_UNKNOWN if run is None else run.git_sha,
        pyproject_hash=GIT_SHA_UNKNOWN if run is None else run.pyproject_hash,
        extra={
            "content_version": CONTENT_VERSION,
            "bp_samples": int(training["bp_samples"]),
            "names": sorted(content["callback_state_dicts"]),
            "versions": versions,
        },
    )
    uri = f"{LOCAL_URI_SCHEME}{checkpoint_path(folder, index).name}"
    save_checkpoint(state_dict=content, uri=uri, metadata=metadata, artifacts_root=folder)
    return checkpoint_path(folder, index)


def read_checkpoint(
    folder: Path, index: int, *, max_bytes: int | None, require_manifest: bool
) -> dict[str, Any]:
    """Return the content of a checkpoint after checking it.

    ``max_bytes`` None accepts any size, but nothing that unpacks to more than it has on disk.
    """
    path = checkpoint_path(folder, index)
    if not path.is_file():
        got = f"no such file; there are the indices {existing_indices(folder)}"
        refuse(CheckpointNotFoundError, str(path), expected="a checkpoint", got=got)
    limit = path.stat().st_size if max_bytes is None else max_bytes
    has_manifest = sidecar_path(path).exists() or pending_path(path).exists()
    if has_manifest or require_manifest:
        uri = f"{LOCAL_URI_SCHEME}{path.name}"
        content, metadata = load_checkpoint(uri=uri, artifacts_root=folder, max_bytes=limit)
        version = metadata.extra.get("content_version")
        if version != CONTENT_VERSION:
            expected, got = f"content version {CONTENT_VERSION}", repr(version)
            advice = "load it with the release that wrote it"
            refuse(CheckpointError, str(path), expected=expected, got=got, do=advice)
    else:
        content = read_emote_checkpoint(path, max_bytes=limit)
    training: Any = content.get("training_state")
    numbers = cast("dict[str, Any]", training) if isinstance(training, dict) else {}
    counts = [numbers.get(key) for key in ("bp_step", "bp_samples")]
    has_states = isinstance(content.get("callback_state_dicts"), dict)
    if not has_states or not all(isinstance(count, int) for count in counts):
        expected = "'callback_state_dicts' and 'training_state' with bp_step and bp_samples"
        got, advice = sorted(map(str, content)), "this is no checkpoint of a training"
        refuse(CheckpointError, str(path), expected=expected, got=got, do=advice)
    return content


def prune_checkpoints(folder: Path, newest: int, keep_last: int) -> list[int]:
    """Delete all but the last ``keep_last`` checkpoints up to ``newest``; return their indices."""
    removed = [index for index in existing_indices(folder) if index <= newest - keep_last]
    for index in removed:
        remove_checkpoint(checkpoint_path(folder, index))
    return removed


#: Stands for the newest checkpoint in a folder.
LATEST: Final = "latest"


def snapshot(value: Any, device: str | None = None) -> Any:
    """Return a copy of a nested state that later training steps cannot change.

    Tensors are copied to the device, or where they are; mappings become dicts, and tuples and lists
    stay what they are.
    """
    if isinstance(value, torch.Tensor):
        return value.detach().to(device, copy=True)
    if isinstance(value, Mapping):
        entries = cast("Mapping[Any, Any]", value)
        return {key: snapshot(item, device) for key, item in entries.items()}
    if isinstance(value, list | tuple):
        items = cast("list[Any] | tuple[Any, ...]", value)
        copies = [snapshot(item, device) for item in items]
        return copies if isinstance(value, list) else tuple(copies)
    return value


_logger = logging.getLogger(__name__)


class Restoree(Protocol):
    """Anything whose state a checkpoint holds."""

    @property
    def name(self) -> str:
        """Name in the checkpoint, different from all others in it."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return tensors, plain values, lists and dicts; must work until training has ended."""
        ...

    def load_state_dict(
        self,
        state_dict: dict[str, Any],
        load_network: bool = True,
        load_optimizer: bool = True,
        load_hparams: bool = True,
        /,
    ) -> None:
        """Take over what `state_dict` returned."""
        ...


class InvalidCheckpointLocation(CheckpointError, ValueError):  # noqa: N818 -- public name
    """The folder of the checkpoints does not exist."""


class Checkpointer(Callback):
    """Writes a checkpoint every ``checkpoint_interval`` steps, after all other callbacks."""

    def __init__(
        self,
        *,
        restorees: Sequence[Restoree],
        run_root: str | Path,
        checkpoint_interval: int,
        checkpoint_index: int | Literal["latest"] = 0,
        storage_subdirectory: str = "checkpoints",
        keep_last: int | None = None,
        save_at_end: bool = False,
        asynchronous: bool = False,
        run: RunContext | None = None,
    ) -> None:
        """Choose what is saved, where and how often.

        Args:
            restorees: What is saved, under each one's ``name``.
            run_root: Folder of the run.
            checkpoint_interval: Steps between checkpoints.
            checkpoint_index: Number of the first checkpoint; ``"latest"`` goes on behind the
                existing ones. A restored run goes on behind the checkpoint it came from.
            storage_subdirectory: Folder of the checkpoints inside ``run_root``.
            keep_last: Keep this many checkpoints and delete older ones; None keeps all.
            save_at_end: Also save when training ends cleanly, unless the last step is saved.
            asynchronous: Copy the state, then write it in a thread while training goes on. A
                failure is raised at the next checkpoint or at the end.
            run: Origin of the run, for the manifest.

        Raises:
            InputError: Two restorees of one name, or a number out of range.
        """
        super().__init__(cycle=checkpoint_interval)
        self._order = ORDER_CHECKPOINT
        self.ends_first = save_at_end  # others may close what their state is read from
        self._restorees = _with_unique_names(restorees)
        if keep_last is not None:
            whole_number("Checkpointer.keep_last", keep_last, least=1)
        self._folder = Path(run_root) / storage_subdirectory
        self._next_index = _index_or_latest(self, checkpoint_index)
        self._keep_last = keep_last
        self._save_at_end = save_at_end
        self._executor = ThreadPoolExecutor(1, "checkpoint") if asynchronous else None
        self._writing: Future[None] | None = None
        self._run = run
        self._saved_step: int | None = None
        self._done: dict[str, Any] | None = None

    def begin_training(
        self, latest_checkpoint: str | None = None, checkpoint_index: int | None = None
    ) -> None:
        """Create the folder and find the number of the next checkpoint."""
        make_folder(self._folder)
        remove_temporaries(self._folder)
        existing = existing_indices(self._folder)
        folder = None if latest_checkpoint is None else Path(latest_checkpoint).parent
        is_ours = folder is not None and folder.resolve() == self._folder.resolve()
        if is_ours and checkpoint_index is not None:
            self._next_index = checkpoint_index + 1
        elif self._next_index == LATEST:
            self._next_index = existing[-1] + 1 if existing else 0
        elif existing and existing[-1] >= int(self._next_index):
            told = "%s has checkpoints up to index %d, and this run starts at %s, so it overwrites "
            told += "them; use checkpoint_index='latest' to keep them"
            _logger.warning(told, self._folder, existing[-1], self._next_index)

    @Callback.whole_state
    def end_batch(self, **state: Any) -> None:
        """Note the step that is complete now."""
        if self._save_at_end:
            self._done = self._training_state(state)

    @Callback.whole_state
    def end_cycle(self, bp_step: int, bp_samples: int, **state: Any) -> dict[str, Any]:
        """Write a checkpoint; return its path and index."""
        counts = {"bp_step": bp_step, "bp_samples": bp_samples}
        return self._save(self._training_state({**state, **counts}))

    def end_training(self, exception: BaseException | None = None) -> None:
        """Write the last step if wanted and training ended cleanly; finish writing."""
        is_clean = exception is None or isinstance(exception, TrainingShutdownException)
        try:
            if is_clean and self._done is not None and self._done["bp_step"] != self._saved_step:
                self._save(self._done)
        finally:
            self._finish_writing()

    def _training_state(self, state: dict[str, Any]) -> dict[str, Any]:
        keys = ("bp_step", "bp_samples", "inf_step")
        return {key: state[key] for key in keys if key in state}

    def _save(self, training_state: dict[str, Any]) -> dict[str, Any]:
        """Write one checkpoint of the restorees as they are now."""
        index = 0 if self._next_index == LATEST else int(self._next_index)
        path = checkpoint_path(self._folder, index)
        written = {"latest_checkpoint": str(path), "checkpoint_index": index}
        content = {
            "callback_state_dicts": {each.name: each.state_dict() for each in self._restorees},
            "training_state": {**training_state, **written},
            "generator_states": global_generator_states(),
        }
        self._finish_writing()
        if self._executor is None:
            self._publish(index, content)
        else:
            self._writing = self._executor.submit(self._publish, index, snapshot(content, "cpu"))
        self._next_index = index + 1
        self._saved_step = training_state["bp_step"]
        return written

    def _finish_writing(self) -> None:
        """Wait for a checkpoint that is being written, and raise its error, if any."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _publish(self, index: int, content: dict[str, Any]) -> None:
        write_checkpoint(self._folder, index, content, self._run)
        if self._keep_last is not None:
            prune_checkpoints(self._folder, index, self._keep_last)


class CheckpointLoader(Callback):
    """Restores what a `Checkpointer` saved, before training starts."""

    def __init__(
        self,
        *,
        restorees: Sequence[Restoree],
        run_root: str | Path,
        checkpoint_index: int | Literal["latest"],
        load_weights: bool = True,
        load_optimizers: bool = True,
        load_hparams: bool = True,
        storage_subdirectory: str = "checkpoints",
        fall_back: bool = False,
        missing_ok: bool = False,
        require_manifest: bool = True,
        max_bytes: int | None = None,
    ) -> None:
        """Choose what is restored and from where.

        Args:
            restorees: What is restored; the file may hold more.
            run_root: Folder of the run.
            checkpoint_index: Which checkpoint; ``"latest"`` is the newest valid one.
            load_weights: Restore network weights.
            load_optimizers: Restore optimisers and learning-rate schedules.
            load_hparams: Restore everything else: step and sample counts, logs, memories, random
                generators.
            storage_subdirectory: Folder of the checkpoints inside ``run_root``.
            fall_back: When the checkpoint of that index is damaged, take the newest valid one
                before it. ``"latest"`` always does.
            missing_ok: Start from scratch when there is no checkpoint at all.
            require_manifest: Refuse files without manifest. Turn it off for files of Emote.
            max_bytes: Largest file to accept; None: any size, if it is not compressed.

        Raises:
            InputError: Two restorees of one name, or ``checkpoint_index`` is another text.
        """
        super().__init__()
        self._restorees = _with_unique_names(restorees)
        self._folder = Path(run_root) / storage_subdirectory
        self._index = _index_or_latest(self, checkpoint_index)
        self._load = (load_weights, load_optimizers, load_hparams)
        self._fall_back = fall_back or checkpoint_index == LATEST
        self._missing_ok = missing_ok
        self._read_file = partial(
            read_checkpoint, self._folder, max_bytes=max_bytes, require_manifest=require_manifest
        )

    def restore_state(self) -> dict[str, Any] | None:
        """Give the restorees their state.

        Raises:
            InvalidCheckpointLocation: The folder is missing.
            CheckpointNotFoundError: The file is missing.
            CheckpointKeyError: The file lacks a restoree's name.
            CheckpointError: No file is valid.
        """
        found = self._read()
        if found is None:
            _logger.info("No checkpoint in %s; starting from scratch", self._folder)
            return None
        index, content = found
        states = content["callback_state_dicts"]
        self._require_names(index, states)
        for restoree in self._restorees:
            restoree.load_state_dict(states[restoree.name], *self._load)
        if not self._load[2]:
            return None
        if "generator_states" in content:
            set_global_generator_states(content["generator_states"])
        training = content["training_state"]
        latest = {"latest_checkpoint": str(checkpoint_path(self._folder, index))}
        step = {"bp_step": training["bp_step"] + 1}
        return {**training, **step, **latest, "checkpoint_index": index}

    def _read(self) -> tuple[int, dict[str, Any]] | None:
        """Return index and content of the newest valid candidate; None to start from scratch."""
        candidates = self._candidates()
        if not candidates and self._missing_ok:
            return None
        if not self._folder.is_dir():
            expected, got = f"the folder {self._folder}", "no such folder"
            advice = "check run_root and storage_subdirectory"
            owner = "CheckpointLoader"
            refuse(InvalidCheckpointLocation, owner, expected=expected, got=got, do=advice)
        if not candidates:
            owner, expected = f"{self._folder}", "a checkpoint"
            advice = "check run_root, or pass missing_ok=True to start from scratch"
            refuse(CheckpointNotFoundError, owner, expected=expected, got="none", do=advice)
        problems: list[str] = []
        for index in candidates:
            try:
                return index, self._read_file(index)
            except CheckpointError as error:
                if not self._fall_back:
                    raise
                _logger.warning("Skipping a damaged checkpoint: %s", error)
                problems.append(str(error))
        told = f"{self._folder}: expected a valid checkpoint, got none among {candidates}: "
        raise CheckpointError(told + "; ".join(problems))

    def _candidates(self) -> list[int]:
        """Return the indices to try, best first."""
        existing = existing_indices(self._folder)[::-1]
        if self._index == LATEST:
            return existing
        wanted = int(self._index)
        if self._fall_back:
            return [index for index in existing if index <= wanted]
        return [] if self._missing_ok and wanted not in existing else [wanted]

    def _require_names(self, index: int, states: dict[str, Any]) -> None:
        names = {restoree.name for restoree in self._restorees}
        missing, unexpected = sorted(names - set(states)), sorted(set(states) - names)
        if missing:
            path, got = checkpoint_path(self._folder, index), f"none; not asked for: {unexpected}"
            advice, expected = "name the restorees as when it was saved", f"states named {missing}"
            refuse(CheckpointKeyError, str(path), expected=expected, got=got, do=advice)
        if unexpected:
            _logger.info("Checkpoint %d holds more than is restored: %s", index, unexpected)


def _index_or_latest(owner: object, index: int | str) -> int | str:
    if isinstance(index, str) and index != LATEST:
        name = type(owner).__name__
        refuse(InputError, name, expected="an index or 'latest'", got=repr(index))
    return index


def _with_unique_names(restorees: Iterable[Restoree]) -> list[Restoree]:
    """Return the restorees as a list."""
    listed = list(restorees)
    counts = Counter(restoree.name for restoree in listed)
    if duplicates := sorted(name for name, count in counts.items() if count > 1):
        got, advice = f"duplicates {duplicates}", "give each object its own 'name'"
        refuse(InputError, "Checkpoint restorees", expected="one name each", got=got, do=advice)
    return listed


def global_generator_states() -> dict[str, Any]:
    """Return the states of Python, numpy and torch (CPU, and CUDA if used) as plain values."""
    version, words, gauss = random.getstate()
    legacy = np.random.get_state(legacy=False)  # noqa: NPY002 -- read only
    states: dict[str, Any] = {
        "python": {"version": version, "words": torch.tensor(words), "gauss": gauss},
        "numpy": {
            "words": torch.tensor(legacy["state"]["key"].tolist()),
            "position": int(legacy["state"]["pos"]),
            "has_gauss": int(legacy["has_gauss"]),
            "gauss": float(legacy["gauss"]),
        },
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def set_global_generator_states(states: Mapping[str, Any]) -> None:
    """Give the process-wide generators the states that `global_generator_states` returned.

    CUDA states are given back to as many devices as there are.
    """
    try:
        python, legacy = states["python"], states["numpy"]
        random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
        key = legacy["words"].numpy().astype(np.uint32)
        np.random.set_state(  # noqa: NPY002 -- gives back what was there, draws nothing
            ("MT19937", key, legacy["position"], legacy["has_gauss"], legacy["gauss"])
        )
        torch.set_rng_state(states["torch"].cpu())
        if torch.cuda.is_available():
            for device, state in enumerate(states.get("cuda", ())[: torch.cuda.device_count()]):
                torch.cuda.set_rng_state(state.cpu(), device)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise CheckpointError(
            "generator states: expected those of Python, numpy and torch, got malformed ones "
            f"({error}); use another checkpoint."
        ) from error
