"""Descriptions of datasets on disk, ``meta/info.json``, read without LeRobot."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

from .files import ScriptError

#: Facts, besides features, that datasets must share to be joined.
_SHARED: Final = ("codebase_version", "fps", "robot_type")


def read_info(root: Path) -> dict[str, Any]:
    """Return the description of the dataset in ``root``.

    Raises:
        ScriptError: There is none.
    """
    try:
        info = json.loads((root / "meta" / "info.json").read_text(encoding="utf-8"))
        features = info["features"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ScriptError(f"expected a dataset in {root}, got {error!r}") from error
    if not isinstance(features, dict):
        raise ScriptError(f"expected features in {root}/meta/info.json, got {features!r}")
    return cast("dict[str, Any]", info)


def difference(
    first: Mapping[str, Any], second: Mapping[str, Any], *, labels: bool = True
) -> str | None:
    """Return how the second dataset differs from the first; None if it does not.

    Args:
        first: Description of a dataset.
        second: Description of another one.
        labels: Whether the kind of robot and the names of axes count.
    """
    for key in _SHARED if labels else _SHARED[:-1]:
        if first.get(key) != second.get(key):
            return f"{key} {second.get(key)!r} instead of {first.get(key)!r}"
    mine, others = first["features"], second["features"]
    for key in sorted(mine.keys() | others.keys()):
        if key not in others:
            return f"no {key}"
        if key not in mine:
            return f"{key} as well"
        for fact in sorted(mine[key].keys() | others[key].keys()):
            wanted, found = mine[key].get(fact), others[key].get(fact)
            if wanted != found and (labels or fact != "names"):
                return f"{key} with {fact} {found} instead of {wanted}"
    return None
