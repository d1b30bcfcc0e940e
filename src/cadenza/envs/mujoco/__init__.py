"""Arms in MuJoCo: tasks that two manipulators can only solve together.

Start at:    `CoCarryEnv` and `VectorCoCarryEnv`: two arms carry one rigid bar; `HandoverEnv` and
             `VectorHandoverEnv`: one hands a peg to the other, which seats it; `panda` holds the
             arm's kinematics in closed form.
Promise:     equal (root_seed, seed, actions) give equal bytes, in a fresh, a used and a reset
             environment, in one simulation and in each of many.
May import:  what `envs` may, and the packages `mujoco` and `mjbatch` (extra `mujoco`).
Adding one:  a scene that joins `panda` arms to what they hold, and a subclass of
             `two_arms.Copies`; spaces, seeds, resets and batches are there already.
"""

from typing import TYPE_CHECKING

from cadenza.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from .cocarry import CoCarryEnv as CoCarryEnv
    from .cocarry import CoCarryOptions as CoCarryOptions
    from .cocarry import VectorCoCarryEnv as VectorCoCarryEnv
    from .handover import HandoverEnv as HandoverEnv
    from .handover import HandoverOptions as HandoverOptions
    from .handover import VectorHandoverEnv as VectorHandoverEnv
else:
    __dir__, __getattr__ = lazy_names(__name__)
