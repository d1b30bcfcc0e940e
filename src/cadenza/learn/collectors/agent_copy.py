"""Copies of agents that were written without a thought of threads.

A copy acts in another thread while the original's weights are trained, so nothing that it can reach
may belong to the original's policy.
"""

import copy
import gc
import weakref
from collections.abc import Iterable
from types import FunctionType, ModuleType
from typing import Final

import torch
from torch import nn

from cadenza.core.errors import ConfigurationError
from cadenza.learn.proxies import AgentProxy

_ADVICE: Final = (
    "The thread needs an agent of its own: add with_policy(policy), which returns an agent that "
    "acts with that network, or use GenericAgentProxy."
)


def copy_of_agent(agent: AgentProxy) -> AgentProxy:
    """Return a deep copy of ``agent`` whose policy is its own.

    Args:
        agent: Keeps its policy in itself or in something that it holds.

    Raises:
        ConfigurationError: It cannot be copied; or the copy's ``policy`` is not a module inside
            the copy; or the copy still reaches the policy of ``agent``, for instance from a
            function that was made around it.
    """
    kind = type(agent).__name__
    try:
        copied = copy.deepcopy(agent)
    except (TypeError, RuntimeError, AttributeError, ValueError, copy.Error) as error:
        raise ConfigurationError(
            f"ThreadedGymCollector: expected an agent with with_policy(), or one that can be "
            f"copied, got {kind}: {error}. {_ADVICE}"
        ) from error
    reached = _reachable(copied)
    if id(copied.policy) not in reached or not _is_apart(reached.values(), agent.policy):
        raise ConfigurationError(
            f"ThreadedGymCollector: expected an agent with with_policy(), or one whose copy has a "
            f"policy of its own inside, got {kind}, whose copy still has parts of the policy that "
            f"is trained, or makes its policy anew. {_ADVICE}"
        )
    return copied


def _is_apart(things: Iterable[object], policy: nn.Module) -> bool:
    """Return whether neither ``policy`` nor memory of its tensors is among ``things``."""
    live = {id(module) for module in policy.modules()}
    storages = {_storage(tensor) for tensor in (*policy.parameters(), *policy.buffers())} - {0}
    return not any(
        id(thing) in live or (isinstance(thing, torch.Tensor) and _storage(thing) in storages)
        for thing in things
    )


def _storage(tensor: torch.Tensor) -> int:
    """Return where the memory of a tensor begins; 0 if it has none."""
    return tensor.untyped_storage().data_ptr()


def _reachable(root: object) -> dict[int, object]:
    """Return what ``root`` holds, directly or not, by id; kept alive, so that ids stay unique."""
    found: dict[int, object] = {}
    waiting = [root]
    while waiting:
        thing = waiting.pop()
        if id(thing) not in found:
            found[id(thing)] = thing
            waiting.extend(_held_by(thing))
    return found


def _held_by(thing: object) -> list[object]:
    """Return what an object refers to by itself: not by its class, nor by a module's globals."""
    if isinstance(thing, type | ModuleType):
        return []
    if isinstance(thing, FunctionType):
        named = (thing.__kwdefaults__ or {}).values()
        return [*(thing.__closure__ or ()), *(thing.__defaults__ or ()), *named]
    if isinstance(thing, weakref.ReferenceType):
        return [thing()]
    return gc.get_referents(thing)
