"""How rows come to the device that networks are on."""

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def on_device(rows: NDArray[Any], device: torch.device) -> Tensor:
    """Return ``rows`` as a tensor, on the CPU without a copy."""
    tensor = torch.from_numpy(rows)  # pyright: ignore[reportUnknownMemberType] # untyped in torch
    return tensor if device.type == "cpu" else tensor.to(device)
