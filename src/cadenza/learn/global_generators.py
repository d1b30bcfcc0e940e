"""State of the process-wide random generators, for checkpoints.

The package draws from none of them, but layers of a user's network (dropout, say) and environments
may. A run that resumes exactly must give them back too.
"""

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from cadenza.core.errors import CheckpointError


def global_generator_states() -> dict[str, Any]:
    """Return the states of Python, numpy and torch (CPU, and CUDA if used) as plain values."""
    version, words, gauss = random.getstate()
    legacy = np.random.get_state(legacy=False)  # noqa: NPY002 -- read only
    states: dict[str, Any] = {
        "python": {"version": version, "words": torch.tensor(words), "gauss": gauss},
        "numpy": {
            "words": torch.tensor(legacy["state"]["key"].tolist()),
            "position": int(legacy["state"]["pos"]),
            "has_gauss": int(legacy["has_gauss"]),
            "gauss": float(legacy["gauss"]),
        },
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def set_global_generator_states(states: Mapping[str, Any]) -> None:
    """Give the process-wide generators the states that `global_generator_states` returned.

    CUDA states are given back to as many devices as there are.

    Raises:
        CheckpointError: ``states`` is malformed.
    """
    try:
        python, legacy = states["python"], states["numpy"]
        random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
        key = legacy["words"].numpy().astype(np.uint32)
        np.random.set_state(  # noqa: NPY002 -- gives back what was there, draws nothing
            ("MT19937", key, legacy["position"], legacy["has_gauss"], legacy["gauss"])
        )
        torch.set_rng_state(states["torch"].cpu())
        if torch.cuda.is_available():
            for device, state in enumerate(states.get("cuda", ())[: torch.cuda.device_count()]):
                torch.cuda.set_rng_state(state.cpu(), device)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise CheckpointError(
            "generator states: expected those of Python, numpy and torch, got malformed ones "
            f"({error}); use another checkpoint."
        ) from error
