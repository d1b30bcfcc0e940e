"""What stands beside measured figures: the version, its sources and the machine."""

import os
import platform
from importlib import metadata
from pathlib import Path

import torch

import cadenza
from cadenza.core.provenance import digest_of_sources


def measured_with() -> dict[str, str]:
    """Return version, digest of the sources, and machine."""
    sources = digest_of_sources(Path(cadenza.__file__).parent)
    return {"cadenza": cadenza.__version__, "sources": sources[:12], "machine": machine()}


def machine() -> str:
    """Return processor, instruction set, cores and versions in one phrase."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    processor = names[0] if names else platform.machine()
    instructions = torch.backends.cpu.get_cpu_capability()
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("numpy", "torch"))
    return (
        f"{processor} ({instructions}), {os.cpu_count()} cores, Python "
        f"{platform.python_version()}, {versions}"
    )


def figure(value: float | None) -> str:
    """Return a figure with three significant digits, or nothing."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
