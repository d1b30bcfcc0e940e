"""Recorded updates of HARL, and whether this machine computes with the kernels of the recording."""

import pytest
import torch
from safetensors.torch import load_file

from tests.unit.learn.recordings import HARL_UPDATES
from tools import record_harl_update as recorder


@pytest.fixture(scope="module")
def recording():
    return load_file(HARL_UPDATES)


@pytest.fixture(scope="module")
def same_kernels(recording):
    """Whether plain torch gives the recorded bits here, so that ours must as well."""
    probe = recorder.arithmetic_probe()
    return all(torch.equal(probe[name], recording[name]) for name in probe)
