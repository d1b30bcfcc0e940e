"""Networks, each built from an explicit `torch.Generator`.

Start at:    `ActionValueMlp` and `GaussianMlpPolicy` (off-policy), `gaussian_actor.GaussianActor`
             and `value_critic.ValueCritic` (on-policy), `layers` (encoders), `curl`.
Promise:     equal generator states give bitwise equal weights; the global generator is untouched.
May import:  `core`.  Must not import: `learn.algorithms`.
"""

import importlib
from typing import Any, Final

#: Short names and the modules that define them; imported at first use.
_EXPORTS: Final = {
    "ActionValueMlp": "action_value_mlp",
    "GaussianMlpPolicy": "gaussian_policy",
    "GaussianPolicyHead": "gaussian_policy",
    "ortho_init_": "initialization",
}

__all__ = sorted(_EXPORTS)  # pyright: ignore[reportUnsupportedDunderAll] -- imported at first use


def __dir__() -> list[str]:
    """Return what the module offers, the lazy names included."""
    return sorted({*globals(), *_EXPORTS})


def __getattr__(name: str) -> Any:
    """Import the module that defines ``name`` and return the object."""
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_EXPORTS[name]}"), name)
