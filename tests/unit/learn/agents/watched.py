"""What an update does on which device: on "meta" tensors have shapes but no values to read."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Watched(TorchDispatchMode):
    """Notes operations that make tensors of the CPU, and those that read a value."""

    def __init__(self):
        super().__init__()
        self.on_cpu, self.read = [], []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name == "_local_scalar_dense":
            self.read.append(name)
        if isinstance(result, torch.Tensor) and result.device.type == "cpu":
            self.on_cpu.append(name)
        return result
