"""What this machine can compute and render on; no function here raises."""

import importlib
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def torch_cuda_available() -> bool:
    """Return whether torch finds a CUDA device."""
    import torch

    try:
        return torch.cuda.is_available() and torch.cuda.device_count() > 0
    except RuntimeError:  # a driver that does not fit
        return False


def torch_device() -> "torch.device":
    """Return the best device for networks: CUDA, else MPS, else the CPU."""
    import torch

    if torch_cuda_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def sapien_gpu_available() -> bool:
    """Return whether SAPIEN finds any device to render on; software rendering counts."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            material: Any = importlib.import_module("sapien.render").RenderMaterial
        material()
    except (ImportError, RuntimeError, OSError):
        return False
    return material.__module__.startswith("sapien")  # no stand-in of `simulator`


def sapien_cuda_renderer_available() -> bool:
    """Return whether SAPIEN can render on a CUDA device, without copies through the CPU."""
    if not (torch_cuda_available() and sapien_gpu_available()):
        return False
    try:
        return bool(importlib.import_module("sapien").Device("cuda").can_render())
    except (ImportError, RuntimeError, OSError):
        return False


def device_report() -> str:
    """Return one line: torch, its best device, and what SAPIEN renders on."""
    import torch

    renderer = "none"
    if sapien_gpu_available():
        renderer = "cuda" if sapien_cuda_renderer_available() else "present"
    return f"torch {torch.__version__} on {torch_device()}, SAPIEN renderer: {renderer}"
