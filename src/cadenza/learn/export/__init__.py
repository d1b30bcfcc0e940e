"""Export: trained policies as files that other programs run.

Start at:    `OnnxExporter` (policy to ONNX, checked in ONNX Runtime) and `CRUDStorage` (its files).
Promise:     a file appears under its name complete or not at all; an export that fails says so to
             whoever asked for it.
May import:  `core`, the callback system and proxies of `learn`.
"""

from typing import Final

from cadenza.core.lazy_names import lazy_names

#: Short names and the modules that define them; imported at first use.
_EXPORTS: Final = {
    "CRUDStorage": "crud_storage",
    "OnnxExporter": "onnx_exporter",
    "QueuedExport": "onnx_exporter",
    "StorageItem": "crud_storage",
    "StorageItemHandle": "crud_storage",
}

__dir__, __getattr__ = lazy_names(__name__, _EXPORTS)
