"""Export: trained policies as files that other programs run.

Start at:    `OnnxExporter` (policy to ONNX, checked in ONNX Runtime) and `CRUDStorage` (its files).
Promise:     a file appears under its name complete or not at all; an export that fails says so to
             whoever asked for it.
May import:  `core`, the callback system and proxies of `learn`.
"""

import importlib
from typing import Any, Final

#: Short names and the modules that define them; imported at first use.
_EXPORTS: Final = {
    "CRUDStorage": "crud_storage",
    "OnnxExporter": "onnx_exporter",
    "QueuedExport": "queued_export",
    "StorageItem": "crud_storage",
    "StorageItemHandle": "crud_storage",
}

__all__ = sorted(_EXPORTS)  # pyright: ignore[reportUnsupportedDunderAll] -- imported at first use


def __dir__() -> list[str]:
    """Return what the module offers, the lazy names included."""
    return sorted({*globals(), *_EXPORTS})


def __getattr__(name: str) -> Any:
    """Import the module that defines ``name`` and return the object."""
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_EXPORTS[name]}"), name)
