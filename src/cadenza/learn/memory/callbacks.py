"""Filling a memory from an earlier run's export before training starts."""

from pathlib import Path
from typing import Final

from cadenza.core.files import confined_path
from cadenza.learn.callback import Callback
from cadenza.learn.memory.snapshot import IdPolicy
from cadenza.learn.memory.table import ArrayMemoryTable

#: Before the checkpoint loader and every callback that collects.
_ORDER: Final = -1


class MemoryImporterCallback(Callback):
    """Restores a table from the file that a `MemoryExporterProxyWrapper` wrote.

    The callback has order -1, so the file is read before any collector adds to the table. It is
    checked completely before it replaces what the table holds.

    Args:
        memory_table: Gets the content.
        target_memory_name: Name the exporter was given; the file is ``<name>_export.zip``.
        experiment_load_dir: Folder of the file.
        load_fname_override: File name to use instead, without ``.zip``; it stays inside the folder.
        id_policy: ``remap`` gives the episodes the ids -1, -2, ..., which no agent has; ``keep``
            leaves them as they are, for a run that goes on with higher ones.

    Attributes:
        memory_table: As given.
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
