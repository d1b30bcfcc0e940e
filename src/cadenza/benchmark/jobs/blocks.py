"""Finished parts of a job on disk, one sealed file each, so that a killed job loses one part."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cadenza.core.errors import IntegrityError
from cadenza.core.files import remove_temporaries
from cadenza.core.sealed_json import read_sealed_json, write_sealed_json

_LOGGER = logging.getLogger(__name__)

_KIND: Final = "cadenza-job-block"


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """Numbered parts in a folder.

    Attributes:
        folder: Where they are.
        request_sha256: Whose parts; those of other requests are not taken.
    """

    folder: Path
    request_sha256: str

    def __post_init__(self) -> None:
        remove_temporaries(self.folder)

    def read(self, number: int) -> dict[str, Any] | None:
        """Return part ``number``; None if it was never finished, or cannot be used."""
        path = self._path(number)
        if not path.exists():
            return None
        try:
            facts = read_sealed_json(path, kind=_KIND)
        except IntegrityError as error:
            _LOGGER.warning("doing part %d again: %s", number, error)
            return None
        if facts.pop("of", None) != [self.request_sha256, number]:
            _LOGGER.warning("doing part %d again: %s belongs to another job", number, path)
            return None
        return facts

    def write(self, number: int, facts: Mapping[str, Any]) -> None:
        """Store part ``number`` in one durable step.

        Raises:
            StorageError: The file system refused.
        """
        owned = {**facts, "of": [self.request_sha256, number]}
        write_sealed_json(self._path(number), owned, kind=_KIND)

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:05d}.json"
