"""cadenza: robot policies that work with partners they have never met.

Start at:    ``cadenza.SAC("Pendulum-v1").learn(20_000)`` (`cadenza.learn.api`), `cadenza.guard` for
             the safety filter, or `cadenza quickstart` for the whole idea in minutes.
Floors:      `cli > web > loop > benchmark > aht > envs, partners, stream, evaluation > comm >
             learn, safety > core`; a folder imports only from lower floors.
"""

import sys
from typing import Any, Final

from cadenza.core.lazy_names import lazy_names

__version__ = "0.1.0"

#: Short names and the modules that define them; imported at first use.
_EXPORTS: Final = {
    "DAgger": "learn.imitation_api",
    "DQN": "learn.api",
    "GRPO": "learn.rollout_api",
    "HAPPO": "learn.team_api",
    "HATD3": "learn.team_api",
    "HLGauss": "learn.api",
    "MAPPO": "learn.team_api",
    "MBPO": "learn.api",
    "PPO": "learn.rollout_api",
    "SAC": "learn.api",
    "TD3": "learn.api",
    "guard": "safety.wrappers.guard",
    "register_envs": "envs.registration",
}

__all__ = ["__version__", *sorted(_EXPORTS)]  # pyright: ignore[reportUnsupportedDunderAll] -- imported at first use
__dir__, _load = lazy_names(__name__, _EXPORTS)


def __getattr__(name: str) -> Any:
    """Return a lazy name; whoever uses one may name our tasks to Gymnasium."""
    if name in _EXPORTS:
        _load("register_envs")()
    return _load(name)


if "gymnasium" in sys.modules:
    _load("register_envs")()
