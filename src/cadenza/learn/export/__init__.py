"""Export: trained policies as files that other programs run.

Start at:    `OnnxExporter` (policy to ONNX, checked in ONNX Runtime) and `CRUDStorage` (its files).
Promise:     a file appears under its name complete or not at all; an export that fails says so to
             whoever asked for it.
May import:  `core`, the callback system and proxies of `learn`.
"""

from typing import TYPE_CHECKING

from cadenza.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from .crud_storage import CRUDStorage as CRUDStorage
    from .crud_storage import StorageItem as StorageItem
    from .crud_storage import StorageItemHandle as StorageItemHandle
    from .onnx_exporter import OnnxExporter as OnnxExporter
    from .onnx_exporter import QueuedExport as QueuedExport
else:
    __dir__, __getattr__ = lazy_names(__name__)
