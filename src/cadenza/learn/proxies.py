"""Bridges between the world an agent acts in and the networks that are trained.

An agent proxy turns observations of any number of agents into one network call and the outputs back
into one response per agent. A memory proxy takes both and keeps what training needs.
"""

import copy
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Final, Literal, Protocol, Self, cast, get_args, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from cadenza.core.errors import (
    ConfigurationError,
    InputError,
    PreconditionError,
    UnknownNameError,
    refuse,
)
from cadenza.core.spaces import MDPSpace, SpaceDtype
from cadenza.core.types import AgentId, DictObservation, DictResponse, EpisodeState

#: How a proxy calls its policy: as it is, in training mode (sampling), in evaluation mode (greedy).
ActingMode = Literal["keep", "sample", "greedy"]

#: What agents see, and what they do, by agent.
AgentObservations = Mapping[AgentId, DictObservation]
AgentResponses = Mapping[AgentId, DictResponse]

_NAME: Final = "GenericAgentProxy"
#: States of an episode's last observation.
ENDINGS: Final = (EpisodeState.TERMINAL, EpisodeState.INTERRUPTED)


@runtime_checkable
class AgentProxy(Protocol):
    """Answers observations with responses."""

    def __call__(self, observations: AgentObservations) -> dict[AgentId, DictResponse]:
        """Return one response for every agent whose episode goes on."""
        ...

    @property
    def policy(self) -> nn.Module:
        """The network that acts."""
        ...

    @property
    def input_names(self) -> tuple[str, ...]:
        """Observation keys that go into the network, in order."""
        ...

    @property
    def output_names(self) -> tuple[str, ...]:
        """Response keys that come out of it, in order."""
        ...


@runtime_checkable
class RebindableAgent(AgentProxy, Protocol):
    """An agent proxy of which copies can act with another network."""

    def with_policy(self, policy: nn.Module) -> Self:
        """Return a copy that acts with ``policy``."""
        ...


class MemoryProxy(Protocol):
    """Keeps what agents saw and did."""

    def add(self, observations: AgentObservations, responses: AgentResponses) -> None:
        """Store one step of each agent; agents whose episode ended have no response."""
        ...


def to_numpy(x: torch.Tensor) -> NDArray[Any]:
    """Return ``x`` as an array on the CPU, without gradient history."""
    return x.detach().cpu().numpy()


def active_agents(observations: AgentObservations) -> list[AgentId]:
    """Return the agents whose episode goes on, in order."""
    return [agent for agent, seen in observations.items() if seen.episode_state not in ENDINGS]


class GenericAgentProxy:
    """Calls a policy with several inputs and several outputs for many agents at once.

    The policy is called as ``policy(*inputs)`` in the order of ``input_keys``, each input (K, ...)
    for K active agents, without gradients. It returns a tensor, a sequence of tensors, or a mapping
    of tensors by output key, each with a leading axis of K.
    """

    def __init__(
        self,
        policy: nn.Module,
        device: torch.device | str,
        input_keys: Sequence[str],
        output_keys: Sequence[str],
        uses_logprobs: bool = True,
        spaces: MDPSpace | None = None,
        *,
        mode: ActingMode = "keep",
    ) -> None:
        """Check and keep the parts.

        Args:
            policy: Network that acts.
            device: Where it runs.
            input_keys: Observation keys, in the order of the policy's arguments.
            output_keys: Response keys, in the order of the policy's outputs.
            uses_logprobs: A policy that samples returns the log-probability as second output, which
                is left out of responses.
            spaces: Shapes and types that inputs are brought to. Without it, floats get the type of
                the policy's parameters and shapes stay.
            mode: ``"sample"`` and ``"greedy"`` put the policy into training or evaluation mode for
                the time of a call; ``"keep"`` calls it as it is.
        """
        self._input_keys = _checked_keys("input_keys", input_keys)
        self._output_keys = _checked_keys("output_keys", output_keys)
        if mode not in get_args(ActingMode):
            expected = "mode 'keep', 'sample' or 'greedy'"
            refuse(ConfigurationError, _NAME, expected=expected, got=repr(mode))
        known = None if spaces is None else spaces.state.spaces
        if known is not None and (missing := [k for k in self._input_keys if k not in known]):
            expected = f"input keys among {sorted(known)}"
            advice = "correct input_keys or pass the spaces of this environment"
            refuse(UnknownNameError, _NAME, expected=expected, got=missing, do=advice)
        self._policy = policy
        self._device = torch.device(device)
        self._uses_logprobs = uses_logprobs
        self._spaces = known
        self._mode: ActingMode = mode

    @property
    def policy(self) -> nn.Module:
        """The network that acts."""
        return self._policy

    @property
    def input_names(self) -> tuple[str, ...]:
        """Observation keys that go into the network, in order."""
        return self._input_keys

    @property
    def output_names(self) -> tuple[str, ...]:
        """Response keys that come out of it, in order."""
        return self._output_keys

    @property
    def mode(self) -> ActingMode:
        """How the policy is called."""
        return self._mode

    def with_policy(self, policy: nn.Module) -> Self:
        """Return a copy that acts with ``policy``."""
        other = copy.copy(self)
        other._policy = policy  # noqa: SLF001 -- of this class
        return other

    def with_mode(self, mode: ActingMode) -> Self:
        """Return a copy that calls the same policy in another mode."""
        other = copy.copy(self)
        other._mode = mode  # noqa: SLF001 -- of this class
        return other

    def __call__(self, observations: AgentObservations) -> dict[AgentId, DictResponse]:
        """Return one response for every agent whose episode goes on; none for the others.

        Raises:
            PreconditionError: No observations at all.
            UnknownNameError: An observation lacks an input key, or the policy an output key.
            InputError: Shapes that do not fit, or another number of outputs than output keys.
        """
        if not observations:
            refuse(PreconditionError, _NAME, expected="at least one observation", got="none")
        active = active_agents(observations)
        if not active:
            return {}
        samples = None if self._mode == "keep" else self._mode == "sample"
        moded = nullcontext() if samples is None else in_mode(self._policy, training=samples)
        with torch.no_grad(), moded:
            inputs = [self._input(key, active, observations) for key in self._input_keys]
            result = self._policy(*inputs)
        keys, has_log = self._output_keys, self._uses_logprobs
        outputs = named_outputs(_NAME, result, keys, uses_logprobs=has_log)
        rows = {key: self._rows(key, value, len(active)) for key, value in outputs.items()}
        return {
            agent: DictResponse(
                list_data={key: cast("list[float]", values[i]) for key, values in rows.items()},
                scalar_data={},
            )
            for i, agent in enumerate(active)
        }

    def _input(
        self, key: str, active: list[AgentId], observations: AgentObservations
    ) -> torch.Tensor:
        """Return one input of the policy, (K, ...), in its declared type."""
        try:
            batch = np.stack([np.asarray(observations[agent].array_data[key]) for agent in active])
        except KeyError as error:
            raise UnknownNameError(
                f"GenericAgentProxy: expected observations with {list(self._input_keys)}, got one "
                f"without {key!r}; correct input_keys or what the environment sends."
            ) from error
        except ValueError as error:
            told = f"{_NAME}: expected {key!r} with one shape for all agents: {error}."
            raise InputError(told) from error
        tensor = torch.as_tensor(batch)
        if self._spaces is not None:
            space = self._spaces[key]
            return _reshaped(key, tensor, space.shape).to(self._device, torch_dtype(space.dtype))
        floating = (p.dtype for p in self._policy.parameters() if p.is_floating_point())
        dtype = next(floating, torch.float32) if tensor.is_floating_point() else tensor.dtype
        return tensor.to(self._device, dtype)

    def _rows(self, key: str, output: torch.Tensor, count: int) -> NDArray[Any]:
        """Return an output as an array with one row per active agent."""
        if output.dim() == 0 or output.shape[0] != count:
            expected, got = f"{key!r} with {count} rows", f"shape {tuple(output.shape)}"
            advice = "the policy must keep the batch axis"
            refuse(InputError, _NAME, expected=expected, got=got, do=advice)
        return to_numpy(output)


def named_outputs(
    owner: str, result: object, names: Sequence[str], *, uses_logprobs: bool = True
) -> dict[str, torch.Tensor]:
    """Return a policy's outputs by name.

    A mapping is taken by name, a sequence by place, where one result more than names means that the
    second is the log-probability, which is left out. A single result is given to each name.

    Raises:
        UnknownNameError: A mapping lacks a name.
        InputError: Another number of outputs.
    """
    if isinstance(result, torch.Tensor):
        return dict.fromkeys(names, result)
    if isinstance(result, Mapping):
        named = cast("Mapping[str, torch.Tensor]", result)
        missing = [name for name in names if name not in named]
        if missing:
            expected, got = (
                f"the policy to return {list(names)}",
                f"{sorted(named)} without {missing}",
            )
            refuse(UnknownNameError, owner, expected=expected, got=got, do="correct output_keys")
        return {name: named[name] for name in names}
    outputs = list(cast("Sequence[torch.Tensor]", result))
    if uses_logprobs and len(outputs) == len(names) + 1:
        del outputs[1]
    if len(outputs) != len(names):
        more = " and a log-probability" if uses_logprobs else ""
        expected = f"{len(names)} outputs for {list(names)}{more}"
        advice = "correct output_keys or uses_logprobs"
        refuse(InputError, owner, expected=expected, got=len(outputs), do=advice)
    return dict(zip(names, outputs, strict=True))


def torch_dtype(dtype: SpaceDtype) -> torch.dtype:
    """Return ``dtype``, of torch or numpy, as a torch type."""
    if isinstance(dtype, torch.dtype):
        return dtype
    try:
        return torch.as_tensor(np.empty(0, dtype=dtype)).dtype
    except TypeError as error:
        told = f"space dtype {dtype}: expected a type that torch has, got: {error}"
        raise InputError(told) from error


def _reshaped(key: str, batch: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Return ``batch`` as (K, *shape)."""
    try:
        return batch.reshape(batch.shape[0], *shape)
    except RuntimeError as error:
        raise InputError(
            f"GenericAgentProxy: expected {key!r} of shape {shape}, got "
            f"{tuple(batch.shape[1:])}; pass the spaces of this environment."
        ) from error


def _checked_keys(name: str, keys: Sequence[str]) -> tuple[str, ...]:
    """Return ``keys`` as a tuple of distinct names."""
    if isinstance(keys, str) or not keys or len(set(keys)) != len(keys):
        expected, advice = f"{name} to be distinct names", "write a tuple such as ('obs',)"
        refuse(ConfigurationError, _NAME, expected=expected, got=repr(keys), do=advice)
    return tuple(keys)


@contextmanager
def in_mode(module: nn.Module, *, training: bool) -> Generator[None]:
    """Run a block with ``module`` in training or evaluation mode, then put every part back."""
    others = [part for part in module.modules() if part.training != training]
    if others:
        module.train(training)
    try:
        yield
    finally:
        for part in others:
            part.training = not training
