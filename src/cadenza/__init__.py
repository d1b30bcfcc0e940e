"""cadenza: robot policies that work with partners they have never met.

Start at:    ``cadenza.SAC("Pendulum-v1").learn(20_000)`` (`cadenza.learn.api`), `cadenza.guard` for
             the safety filter, or `cadenza quickstart` for the whole idea in minutes.
Floors:      `cli > web > loop > benchmark > aht > envs, partners, stream, evaluation > comm >
             learn, safety > core`; a folder imports only from lower floors.
"""

from typing import Final

from cadenza.core.lazy_names import after_import, lazy_names

__version__ = "0.1.0"

#: Short names and the modules that define them; imported at first use.
_EXPORTS: Final = {
    "DAgger": "learn.imitation_api",
    "DQN": "learn.replay_api",
    "GRPO": "learn.rollout_api",
    "HAPPO": "learn.team_api",
    "HATD3": "learn.team_api",
    "HLGauss": "learn.replay_api",
    "MAPPO": "learn.team_api",
    "MBPO": "learn.replay_api",
    "PPO": "learn.rollout_api",
    "SAC": "learn.replay_api",
    "TD3": "learn.replay_api",
    "guard": "safety.wrappers.guard",
    "register_envs": "envs.registration",
}

__all__ = ["__version__", *sorted(_EXPORTS)]  # pyright: ignore[reportUnsupportedDunderAll] -- imported at first use
__dir__, __getattr__ = lazy_names(__name__, _EXPORTS)

# Whichever of the two is imported first: gym.make("cadenza/Crossing-v1") works.
after_import("gymnasium", lambda: __getattr__("register_envs")())
