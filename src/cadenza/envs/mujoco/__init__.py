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

from typing import TYPE_CHECKING, Final

from cadenza.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from cadenza.envs.mujoco.cocarry import CoCarryEnv, CoCarryOptions, VectorCoCarryEnv
    from cadenza.envs.mujoco.handover import HandoverEnv, HandoverOptions, VectorHandoverEnv

__all__ = [
    "CoCarryEnv",
    "CoCarryOptions",
    "HandoverEnv",
    "HandoverOptions",
    "VectorCoCarryEnv",
    "VectorHandoverEnv",
]

#: Short names and the modules that define them; imported at first use.
_EXPORTS: Final = {
    "CoCarryEnv": "cocarry",
    "CoCarryOptions": "cocarry",
    "HandoverEnv": "handover",
    "HandoverOptions": "handover",
    "VectorCoCarryEnv": "cocarry",
    "VectorHandoverEnv": "handover",
}

__dir__, __getattr__ = lazy_names(__name__, _EXPORTS)
