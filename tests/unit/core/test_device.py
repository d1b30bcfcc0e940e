import os

import pytest
import torch

from cadenza.core.device import (
    LEARNING_KINDS,
    deterministic_algorithms,
    device_report,
    resolve_device,
)
from cadenza.core.errors import DeviceUnavailableError, InputError


@pytest.fixture
def machine(monkeypatch):
    """Pretends that the machine has the given numbers of devices."""

    def pretend(*, cuda: int = 0, mps: int = 0):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: cuda)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps > 0)
        monkeypatch.setattr(torch, "ones", lambda shape, device: torch.zeros(shape) + 1.0)

    return pretend


@pytest.mark.parametrize(
    ("present", "expected"), [({"cuda": 1, "mps": 1}, "cuda:0"), ({"mps": 1}, "mps"), ({}, "cpu")]
)
def test_auto_prefers_cuda_then_mps_then_cpu(machine, present, expected):
    machine(**present)
    assert resolve_device("auto") == torch.device(expected)
    assert resolve_device() == torch.device(expected)


@pytest.mark.parametrize("name", ["cuda", "cuda:0", "mps"])
def test_missing_device_is_an_error_that_cites_the_decision(machine, name):
    machine()
    with pytest.raises(
        DeviceUnavailableError,
        match=r"this machine has: cpu; write device='cpu' or 'auto'.*\(ADR-002",
    ):
        resolve_device(name)
    with pytest.raises(RuntimeError, match="ADR-002"):
        resolve_device(name)


def test_device_index_must_exist(machine):
    machine(cuda=2)
    assert resolve_device("cuda:1") == torch.device("cuda", 1)
    with pytest.raises(
        DeviceUnavailableError, match=r"'cuda:2': .*this number.* has: cuda:0, cuda:1, cpu;"
    ):
        resolve_device("cuda:2")


def test_auto_passes_over_devices_that_do_not_compute(machine, monkeypatch):
    machine(cuda=2)

    def ones(shape, device):
        if device.index == 0:
            raise RuntimeError("CUDA error: all CUDA-capable devices are busy or unavailable")
        return torch.zeros(shape) + 1.0

    monkeypatch.setattr(torch, "ones", ones)
    assert resolve_device("auto") == torch.device("cuda", 1)


def test_agents_learn_on_cuda_or_the_cpu_alone(machine):
    machine(mps=1)
    assert resolve_device("auto", kinds=LEARNING_KINDS) == torch.device("cpu")
    with pytest.raises(InputError, match="expected 'auto', 'cpu', 'cuda' or"):
        resolve_device("mps", kinds=LEARNING_KINDS)


@pytest.mark.parametrize("name", ["", "gpu", "cuda:", "cuda:x", "cuda:-1", "CPU", "tpu:0"])
def test_unknown_device_name_is_refused(name):
    with pytest.raises(InputError, match="expected 'auto', 'cpu', 'mps'"):
        resolve_device(name)


@pytest.fixture
def torch_switches():
    """Restores torch's process-wide switches after a test that sets them."""
    yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.benchmark = False


def fail_inside_block(enabled: bool) -> None:
    with deterministic_algorithms(enabled):
        assert torch.are_deterministic_algorithms_enabled() is enabled
        assert torch.is_deterministic_algorithms_warn_only_enabled() is False
        assert torch.backends.cudnn.benchmark is not enabled
        assert ("CUBLAS_WORKSPACE_CONFIG" in os.environ) is enabled
        raise KeyError


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("warn_only", [False, True])
@pytest.mark.parametrize("inside", [False, True])
def test_deterministic_algorithms_are_scoped(torch_switches, before, warn_only, inside):
    torch.use_deterministic_algorithms(before, warn_only=warn_only)
    torch.backends.cudnn.benchmark = True
    with pytest.raises(KeyError):
        fail_inside_block(inside)
    assert torch.are_deterministic_algorithms_enabled() is before
    assert torch.is_deterministic_algorithms_warn_only_enabled() is warn_only
    assert torch.backends.cudnn.benchmark is True
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ


def test_deterministic_algorithms_refuse_an_operation_without_a_reproducible_version():
    # Filling uninitialised memory is what torch does to make ``resize_`` reproducible.
    with deterministic_algorithms():
        assert torch.isnan(torch.empty(4).resize_(8)).any()


def test_device_report_is_one_line_with_the_facts(monkeypatch):
    line = device_report(torch.device("cpu"))
    assert line.startswith("cpu: ")
    assert f"{torch.get_num_threads()} thread(s)" in line
    assert line.endswith(f"torch {torch.__version__}")

    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Card X")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (0, 24 * 2**30))
    line = device_report(torch.device("cuda", 0))
    assert line.startswith("cuda:0: Card X, 24.0 GiB, CUDA ")
