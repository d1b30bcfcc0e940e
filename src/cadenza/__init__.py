"""cadenza: robot policies that work with partners they have never met.

Start at:    ``cadenza.SAC("Pendulum-v1").learn(20_000)`` (`cadenza.learn.agents`), `cadenza.guard`
             for the safety filter, or `cadenza quickstart` for the whole idea in minutes.
Floors:      `cli > web > loop > benchmark > aht > envs, partners, stream, evaluation > comm >
             learn, safety > core`; a folder imports only from lower floors.
"""

from typing import TYPE_CHECKING

from cadenza.core import __version__ as __version__
from cadenza.core.lazy_names import after_import, lazy_names

if TYPE_CHECKING:
    from . import aht as aht
    from . import contracts as contracts
    from . import envs as envs
    from . import evaluation as evaluation
    from . import learn as learn
    from . import partners as partners
    from . import safety as safety
    from . import schedules as schedules
    from . import stream as stream
    from .envs.registration import register_envs as register_envs
    from .learn.agents.bc import BC as BC
    from .learn.agents.cec import CEC as CEC
    from .learn.agents.dagger import DAgger as DAgger
    from .learn.agents.dqn import DQN as DQN
    from .learn.agents.e3t import E3T as E3T
    from .learn.agents.grpo import GRPO as GRPO
    from .learn.agents.happo import HAPPO as HAPPO
    from .learn.agents.hatd3 import HATD3 as HATD3
    from .learn.agents.hlgauss import HLGauss as HLGauss
    from .learn.agents.liam import LIAM as LIAM
    from .learn.agents.load import load as load
    from .learn.agents.mappo import MAPPO as MAPPO
    from .learn.agents.mbpo import MBPO as MBPO
    from .learn.agents.ppo import PPO as PPO
    from .learn.agents.sac import SAC as SAC
    from .learn.agents.td3 import TD3 as TD3
    from .learn.agents.upd import UPD as UPD
    from .safety.wrappers.guard import guard as guard
else:
    __dir__, __getattr__ = lazy_names(__name__)
    # Whichever of the two is imported first: gym.make("cadenza/Crossing-v1") works.
    after_import("gymnasium", lambda: __getattr__("register_envs")())
