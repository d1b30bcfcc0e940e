"""Task contracts for users: those of our tasks, and where to register more.

    from cadenza.contracts import ActionField, ObsField, TaskContract, register

`cadenza.core.contracts` says what a contract is and when it is compared.
"""

from cadenza.core.contracts import (
    ActionField,
    ObsField,
    TaskContract,
    get,
    list_contracts,
    register,
    versions,
)
from cadenza.envs.contracts import OWN

__all__ = [
    "ActionField",
    "ObsField",
    "TaskContract",
    "get",
    "list_contracts",
    "register",
    "versions",
]

for _contract in OWN:
    register(_contract)
