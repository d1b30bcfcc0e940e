"""Filling a memory before training: from an earlier run's export, or the dumps of an older tool."""

import itertools
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cadenza.core.errors import ConfigurationError, IntegrityError
from cadenza.core.files import confined_path
from cadenza.learn.callback import Callback
from cadenza.learn.memory.column import UnknownKeyError
from cadenza.learn.memory.emote_formats import load_plain_pickle
from cadenza.learn.memory.snapshot import IdPolicy
from cadenza.learn.memory.table import ArrayMemoryTable

#: Before the checkpoint loader and every callback that collects.
_ORDER: Final = -1


class MemoryImporterCallback(Callback):
    """Restores a table from the file that a `MemoryExporterProxyWrapper` wrote.

    The callback has order -1, so the file is read before any collector adds to the table. It is
    checked completely before it replaces what the table holds.

    Args:
        target_memory_name: Name the exporter was given; the file is ``<name>_export.zip``.
        experiment_load_dir: Folder of the file.
        load_fname_override: File name to use instead, without ``.zip``; it stays inside the folder.
        id_policy: ``remap`` gives the episodes the ids -1, -2, ..., which no agent has; ``keep``
            leaves them as they are, for a run that goes on with higher ones.
    """

    def __init__(
        self,
        memory_table: ArrayMemoryTable,
        target_memory_name: str,
        experiment_load_dir: str,
        load_fname_override: str | None = None,
        *,
        id_policy: IdPolicy = "remap",
    ) -> None:
        super().__init__()
        self._order = _ORDER
        self.memory_table = memory_table
        self._id_policy: IdPolicy = id_policy
        self._folder = Path(experiment_load_dir)
        self._file_name = load_fname_override or f"{target_memory_name}_export"

    def restore_state(self) -> None:
        """Restore the table.

        Raises:
            StorageError: The file name leads out of the folder.
            FileNotFoundError: There is no such file.
            IntegrityError: The file is damaged or does not fit the table, which is unchanged.
        """
        file = confined_path(self._folder, f"{self._file_name}.zip")
        if not file.is_file():
            raise FileNotFoundError(
                f"MemoryImporterCallback: expected the exported memory {file}, got no such file; "
                "check experiment_load_dir and the name, or export first."
            )
        self.memory_table.restore(str(file.with_suffix("")), id_policy=self._id_policy)


_KEYS: Final = ("dones", "actions", "rewards", "next_obs", "obs")
#: Shorter runs are noise at the seams of the dump.
_MIN_STEPS: Final = 10
_SUFFIX: Final = ".pickle"


def fill_table_from_legacy_file(
    memory_table: ArrayMemoryTable,
    path: str,
    *,
    read_obs: bool = False,
    read_actions: bool = False,
    read_rewards: bool = False,
    allow_pickle: bool = False,
) -> None:
    """Add the episodes of a dump to a table.

    The dump is a pickled dictionary of arrays ``dones``, ``actions``, ``rewards``, ``next_obs`` and
    ``obs``, one entry per step in their leading axes. An episode ends at each true ``dones``; what
    comes after the last one is left out, and so are episodes of fewer than 10 steps. Each gets a
    negative id, below every id in the table.

    Args:
        memory_table: Gets the columns that are read, and must have no others that store data.
        path: The dump; ``.pickle`` is added if it is missing.
        read_obs: Fill the column ``obs``; the last state of an episode comes from ``next_obs``.
        read_actions: Fill the column ``actions``.
        read_rewards: Fill the column ``rewards``.
        allow_pickle: Must be true: the dump is a pickle. Only plain data in it is read.

    Raises:
        ConfigurationError: Pickles are not allowed.
        OSError: There is no such file.
        IntegrityError: The file is damaged, or its arrays differ in their number of steps.
        UnknownKeyError: The table has other columns, or the file lacks an array (a `KeyError`).
    """
    file = Path(path if path.endswith(_SUFFIX) else f"{path}{_SUFFIX}")
    if not allow_pickle:
        raise ConfigurationError(
            f"{file}: expected allow_pickle=True for a dump, which is a pickle, got False; pass it "
            "if you trust the file."
        )
    with file.open("rb") as stream:
        arrays = _step_arrays(load_plain_pickle(stream, source=str(file)), str(file))
    wanted = {"obs": read_obs, "actions": read_actions, "rewards": read_rewards}
    ends = np.flatnonzero(arrays["dones"].reshape(-1)) + 1
    identities = itertools.count(min([0, *memory_table.identities()]) - 1, -1)
    for start, stop in itertools.pairwise([0, *ends.tolist()]):
        if stop - start < _MIN_STEPS:
            continue
        sequence = {name: arrays[name][start:stop] for name, read in wanted.items() if read}
        if read_obs:
            last = arrays["next_obs"][stop - 1 : stop]
            sequence["obs"] = np.concatenate([sequence["obs"], last])
        memory_table.add_sequence(next(identities), sequence)


def _step_arrays(data: dict[Any, Any], source: str) -> dict[str, NDArray[Any]]:
    """Return the arrays of a dump with one row per step, (N, ...)."""
    missing = [key for key in _KEYS if not isinstance(data.get(key), np.ndarray)]
    if missing:
        raise UnknownKeyError(
            f"{source}: expected the arrays {list(_KEYS)}, got none called {missing}."
        )
    steps = data["dones"].size
    uneven = [key for key in _KEYS if steps == 0 or data[key].size % steps]
    if uneven:
        raise IntegrityError(
            f"{source}: expected a multiple of the {steps} entries of 'dones' in every array, and "
            f"at least one, got { ({key: data[key].size for key in uneven}) }."
        )
    return {key: data[key].reshape(steps, -1) for key in _KEYS}
