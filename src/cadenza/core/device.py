"""Which compute device a run uses, and how reproducible it is there."""

import os
import platform
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Final

import torch

from cadenza.core.checks import shown
from cadenza.core.errors import ConfigurationError, DeviceUnavailableError, InputError
from cadenza.core.files import sha256_bytes

#: cuBLAS needs a fixed workspace for reproducible products; read when its handle is made.
_CUBLAS_VARIABLE: Final = "CUBLAS_WORKSPACE_CONFIG"
_CUBLAS_FIXED: Final = ":4096:8"
_BYTES_PER_GIB: Final = 2**30
#: What else helps where torch was built without.
_INSTALL: Final = ", or install torch for CUDA (see pytorch.org)"
#: Kinds of devices, the preferred ones first.
KINDS: Final = ("cuda", "mps", "cpu")
#: Those that agents learn on; what Apple's compute lacks, such as float64, they need.
LEARNING_KINDS: Final = ("cuda", "cpu")


def device_fault(name: str, kinds: Sequence[str] = KINDS) -> str | None:
    """Return what was expected instead of ``name``, None if it asks for a device of ``kinds``."""
    kind, colon, index = name.partition(":")
    is_indexed = index.isascii() and index.isdecimal()
    if name == "auto" or (kind in kinds and is_indexed == bool(colon)):
        return None
    known = ", ".join(map(repr, ("auto", *reversed(kinds))))
    return f"expected {known} or 'cuda:<index>'"


def resolve_device(name: str = "auto", *, kinds: Sequence[str] = KINDS) -> torch.device:
    """Return the device that a name like ``"cuda:0"`` asks for.

    ``"auto"`` asks for the first one that works, in the order of ``kinds``, the CPU as the last.

    Raises:
        DeviceUnavailableError: The device is not present on this machine.
        InputError: ``name`` is none of the above.
    """
    present = [device for kind in kinds for device in _devices(kind)]
    if name == "auto":
        return next(device for device in present if device.type == "cpu" or _works(device))
    if fault := device_fault(name, kinds):
        raise InputError(f"device {name!r}: {fault}; correct it.")
    kind, _, index = name.partition(":")
    if int(index or 0) >= len(_devices(kind)):
        fault = "Apple's GPU does not work here"
        if kind == "cuda":
            fault = "there is no GPU of this number" if _devices(kind) else cuda_fault()
        raise DeviceUnavailableError(
            f"device {name!r}: {fault}; this machine has: "
            f"{', '.join(map(str, present))}; write device='{present[-1]}' or 'auto'"
            f"{_INSTALL if kind == 'cuda' and not _is_built_for_gpus() else ''} "
            "(ADR-002: a run never changes device silently)."
        )
    return torch.device(name)


def cuda_fault() -> str | None:
    """Return why no CUDA GPU works here, None if one does."""
    found = _devices("cuda")
    if any(map(_works, found)):
        return None
    if found:
        why = f"cannot compute on {', '.join(map(str, found))}"
    else:
        why = "finds none" if _is_built_for_gpus() else "was built without CUDA"
    return f"no CUDA GPU works here (torch {torch.__version__} {why})"


def _is_built_for_gpus() -> bool:
    return bool(torch.version.cuda or torch.version.hip)


def _devices(kind: str) -> list[torch.device]:
    """Return the devices of ``kind`` that this machine has."""
    if kind == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        return [torch.device(kind, index) for index in range(count)]
    return [torch.device(kind)] if kind == "cpu" or torch.backends.mps.is_available() else []


def _works(device: torch.device) -> bool:
    """Return whether a device computes: its driver, memory or generation may not let it."""
    try:
        return float(torch.ones((), device=device) + 1.0) == 2.0
    except RuntimeError:
        return False


def checked_device(name: str, value: str) -> torch.device:
    """Return the device that ``value``, a setting called ``name``, names.

    Raises:
        ConfigurationError: It names none, or none that this machine has.
    """
    try:
        device = torch.device(value)
    except (RuntimeError, TypeError, ValueError) as error:
        raise ConfigurationError(
            f"{name}: expected the name of a device, got {value!r}."
        ) from error
    if device.type in ("cuda", "mps"):
        try:
            resolve_device(str(device))
        except DeviceUnavailableError as error:
            raise ConfigurationError(
                f"{name}: expected a device that this machine has ('cpu'), got {value!r}."
            ) from error
    return device


def generator_fault(value: object) -> str | None:
    """Return why nothing can be drawn with ``value``, None if it can: other errors, one text."""
    if isinstance(value, torch.Generator) and value.device.type == "cpu":
        return None
    got = f"one of {value.device}" if isinstance(value, torch.Generator) else shown(value)
    return f"expected a torch.Generator of the CPU, got {got}; write torch.Generator()"


@contextmanager
def single_torch_thread() -> Generator[None]:
    """Keep torch to one thread inside the block, whatever the environment asks for.

    Small networks are faster on one than on several, and sums keep one order everywhere.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def flushed_denormals() -> Generator[None]:
    """Let numbers too small to be normal count as zero inside the block.

    With such moments, as of units that rest, Adam's kernel takes seventeen times as long.
    """
    was_flushed = not float(torch.tensor(1e-39) * 1.0)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(was_flushed)


@contextmanager
def deterministic_algorithms(enabled: bool = True) -> Generator[None]:
    """Let torch use reproducible algorithms only, any unless ``enabled``; restore its switches.

    Operations without a reproducible version raise inside the block. On CUDA, enter before the
    first matrix product: cuBLAS reads its workspace setting only once.
    """
    algorithms = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    benchmark = torch.backends.cudnn.benchmark
    workspace = os.environ.get(_CUBLAS_VARIABLE)
    try:
        torch.use_deterministic_algorithms(enabled)
        if enabled:
            torch.backends.cudnn.benchmark = False
            os.environ.setdefault(_CUBLAS_VARIABLE, _CUBLAS_FIXED)
        yield
    finally:
        torch.use_deterministic_algorithms(algorithms, warn_only=warn_only)
        torch.backends.cudnn.benchmark = benchmark
        if workspace is None:
            os.environ.pop(_CUBLAS_VARIABLE, None)


def device_report(device: torch.device) -> str:
    """Return one line about ``device`` and the software on it, for logs and ``doctor``."""
    software = f"torch {torch.__version__}"
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        memory = torch.cuda.mem_get_info(device)[1] / _BYTES_PER_GIB
        return f"{device}: {name}, {memory:.1f} GiB, CUDA {torch.version.cuda}, {software}"
    processor = platform.processor() or platform.machine()
    return f"{device}: {processor}, {torch.get_num_threads()} thread(s), {software}"


@cache
def network_fingerprint() -> str:
    """Return the SHA-256 of a fixed block of rows after two layers, as this process rounds it.

    Processors of another kind, and other builds of torch, order the sums of a product differently;
    two processes with equal fingerprints play a network with equal bits.
    """
    with single_torch_thread(), torch.no_grad():
        numbers = (torch.arange(64 * 64) * 40503 % 65521).float() / 65521.0 - 0.5
        weights = numbers.reshape(64, 64)
        states = weights[:16] * 3.0
        hidden = torch.tanh(torch.nn.functional.linear(states, weights, weights[0]))
        normed = torch.nn.functional.layer_norm(hidden, (64,))
        outputs = torch.nn.functional.linear(normed, weights[:7])
    return sha256_bytes(outputs.numpy().tobytes())
