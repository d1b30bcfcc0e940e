"""One file for every policy, ``*.policy.safetensors``, that plays without learner or environment.

File:        safetensors; its only metadata entry, ``cadenza``, is canonical JSON with
             ``format``       ``cadenza-policy/1``
             ``observation``  what is observed, ``action``  what is done; see `space_facts`.
                              Where only some actions are legal, the action's ``masks`` is
                              "observation" or "info": which ["action_mask"] tells them
             ``layers``       a closed list of kinds, see `layer_kinds`; tensors by their place
             ``output``       how the last layer becomes an action, see `Output`
             ``task``         {id, version, options} it was trained on, ``seat`` whose it is
             ``contract``     what its numbers mean (`cadenza.core.contracts`), if that is known;
                              the format is then ``cadenza-policy/2``
             ``content_id``   SHA-256 over all of these, then name, dtype, shape and bytes of every
                              tensor by name: what the policy is
             ``facts``        run_id, seed, step, algorithm, trained_with, ...: where it comes from,
                              which does not change what it is and so stands outside the content id
             ``sha256``       of the whole header without it.
Exactness:   an action does not depend on how many rows are asked together, in which order, or
             beside which neighbours; the last block of rows is filled up with zeros.
Axes:        N = rows, P = N filled up to whole blocks, O = flat observation, A = action,
             C = choices.
"""

import json
import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from types import EllipsisType
from typing import Any, Final, cast, overload

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors import torch as tensor_files
from torch import Tensor

from cadenza.core.arrays import (
    BLOCK_ROWS,
    MASK,
    Float32Array,
    legal_choices,
    require_finite,
    require_legal,
)
from cadenza.core.contracts import TaskContract
from cadenza.core.errors import CheckpointError, InputError, refuse
from cadenza.core.files import atomic_write_bytes, canonical_json, sha256_bytes
from cadenza.learn.nn.layer_kinds import KINDS, memories, run_layers
from cadenza.learn.nn.layers import Layer
from cadenza.learn.nn.recurrent import as_remembered, carried
from cadenza.learn.nn.running_normalizer import CLIP
from cadenza.learn.nn.space_facts import flat_rows, flat_width, is_single, with_axis

FORMAT: Final = "cadenza-policy/1"
#: Format of files with a contract, which readers of the other one would overlook.
CONTRACT_FORMAT: Final = "cadenza-policy/2"
#: What such files are called.
SUFFIX: Final = ".policy.safetensors"
#: Key of a policy's `PortableNetwork.state_dict` in a checkpoint.
POLICY_KEY: Final = "policy"
#: Fact in a checkpoint's sidecar: content id of the policy file beside it, or ids by seat.
POLICY_FACT: Final = "policy"
#: Fact in a policy file: how its training partners are known; empty for copies of itself alone.
TRAINED_WITH: Final = "trained_with"
#: Fact in a policy file: settings of the safety filter that it trained behind, if it did.
TRAINED_BEHIND: Final = "trained_behind"
#: Largest file and header that are read, bytes; most tensors; deepest nesting of ``parts``.
MAX_BYTES: Final = 2**30
MAX_HEADER: Final = 2**20
MAX_TENSORS: Final = 4096
MAX_DEPTH: Final = 8
_KEY: Final = "cadenza"
_LENGTH_BYTES: Final = 8  # of a safetensors header's length, at the begin of the file
#: Arrays of an `Output`.
_ARRAYS: Final = ("low", "high", "choices", "counts")
#: Advice where a checksum does not fit.
_CHANGED: Final = "the file was changed, so restore it"
_OUTPUTS: Final = ("choice", "mean", "unit", "tanh", "factors")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Output:
    """How y, the last layer's (N, A) or (N, C), becomes an action.

    choice: choices[argmax y]           mean: clip(y, low, high)
    factors: low + argmax of y in every component, whose logits stand side by side
    unit:   low + (y + 1) / 2 · (high − low), clipped        tanh: unit of tanh y

    Attributes:
        kind: One of the five.
        low: Smallest action, of the action's shape; not beside ``choices``.
        high: Largest action.
        choices: Actions to choose from, (C, *shape).
        counts: Choices of every component, (A,).
        log_std: ln σ of draws y + σ ε, (A,); None for a policy that draws nothing. Choices are
            drawn without it: argmax of y + Gumbel noise.
    """

    kind: str
    low: NDArray[Any] | None = None
    high: NDArray[Any] | None = None
    choices: NDArray[Any] | None = None
    counts: NDArray[Any] | None = None
    log_std: Tensor | None = None

    @property
    def chooses(self) -> bool:
        """Whether y are logits or values of choices."""
        return self.choices is not None or self.counts is not None

    def tensors(self) -> dict[str, Tensor]:
        """Return what there is, by name."""
        found = ((name, getattr(self, name)) for name in (*_ARRAYS, "log_std"))
        return {name: torch.as_tensor(value) for name, value in found if value is not None}

    def remembered(self, y: NDArray[Any]) -> NDArray[Any]:
        """Return what a policy remembers of its decisions on y, (N, A)."""
        if self.choices is not None:
            return as_remembered(torch.as_tensor(y.argmax(axis=-1)), y.shape[1:], None).numpy()
        if self.counts is not None:
            picked = torch.as_tensor(self._picked(y))
            return as_remembered(picked, self.counts.tolist(), None).numpy()
        decided = torch.as_tensor(y)
        bounds = torch.as_tensor(self.low), torch.as_tensor(self.high)
        if self.kind != "mean":
            decided = torch.tanh(decided) if self.kind == "tanh" else decided
            bounds = -torch.ones(y.shape[1]), torch.ones(y.shape[1])
        return as_remembered(decided, (), bounds).numpy()

    def _picked(self, y: NDArray[Any]) -> NDArray[Any]:
        """Return a choice in every component, (N, A)."""
        counts: Any = self.counts
        parts = np.split(y, np.cumsum(counts)[:-1], axis=-1)
        return np.stack([part.argmax(axis=-1) for part in parts], axis=-1)

    def decide(self, y: NDArray[Any], shape: Sequence[int], dtype: str) -> NDArray[Any]:
        """Return actions, (N, *shape)."""
        if self.choices is not None:
            return self.choices[y.argmax(axis=-1)]
        if self.counts is not None:
            return (self._picked(y).reshape(len(y), *shape) + self.low).astype(dtype)
        low, high = cast("Any", self.low), cast("Any", self.high)
        y = y.reshape(len(y), *shape)
        if self.kind == "tanh":
            y = np.tanh(y)
        if self.kind != "mean":
            y = low + 0.5 * (y + 1.0) * (high - low)
        return np.clip(y, low, high).astype(dtype)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class PortableNetwork:
    """A policy without chance, as plain data.

    `predict` plays it as an agent's own `predict` does, `act` plays rows.

    Attributes:
        layers: From flat observations to y.
        output: From y to actions.
        observation: What is observed, see `space_facts`.
        action: What is done.
        task: {id, version, options} of what it was trained on; empty if unknown.
        seat: Whose place in the task it is; None if it has one only.
        contract: What its numbers mean; None if nobody says it.
        facts: Where it comes from.

    Raises:
        CheckpointError: The layers do not fit together, or a number is not finite.
    """

    layers: tuple[Layer, ...]
    output: Output
    observation: Mapping[str, Any]
    action: Mapping[str, Any]
    task: Mapping[str, Any] = field(default_factory=dict[str, Any])
    seat: str | None = None
    contract: TaskContract | None = None
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    content_id: str = field(init=False, default="")

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", _frozen(self.layers))
        spread = self.output.log_std
        if spread is not None:
            own = replace(self.output, log_std=spread.detach().to("cpu", copy=True))
            object.__setattr__(self, "output", own)
        for name, tensor in self.tensors().items():
            bounds = name in ("output.low", "output.high")  # may be infinite
            if tensor.is_floating_point() and not (bounds or bool(tensor.isfinite().all())):
                expected, advice = f"finite numbers in {name}", "take the policy of an earlier step"
                refuse(CheckpointError, "policy", expected=expected, got="others", do=advice)
        self._require_fit()
        object.__setattr__(self, "content_id", self.digest())

    def __repr__(self) -> str:
        """Return what it is and where it comes from, without its weights."""
        told = {**self.task, **({} if self.seat is None else {"seat": self.seat}), **self.facts}
        for long in (TRAINED_WITH, TRAINED_BEHIND):
            told.pop(long, None)
        told |= {} if self.contract is None else {"contract": self.contract.title}
        shown = "".join(f", {name}={value!r}" for name, value in told.items())
        does = f"{self.num_choices} choices" if self.num_choices else f"{self.action_dim} numbers"
        legal = f", legal by {self.masks}['{MASK}']" if self.masks else ""
        return f"<policy of {self.observation_dim} observed numbers to {does}{legal}{shown}>"

    @property
    def observation_dim(self) -> int:
        """O."""
        return flat_width(self.observation)

    @property
    def action_dim(self) -> int:
        """A."""
        return math.prod(self.action.get("shape", ()))

    @property
    def num_choices(self) -> int | None:
        """C, or None for a policy that acts by numbers."""
        return None if self.output.choices is None else len(self.output.choices)

    @property
    def masks(self) -> str | None:
        """What tells legal actions, "observation" or "info"; None if it learned without masks."""
        return self.action.get("masks")

    @property
    def width(self) -> int:
        """Numbers of y, which is A or C unless there are several choices."""
        counts = self.output.counts
        return self.num_choices or (self.action_dim if counts is None else int(counts.sum()))

    @property
    def state_width(self) -> int:
        """S, what the policy remembers of an episode; 0 without a memory."""
        return sum(width for width, _ in memories(self.layers))

    def outputs(self, observations: Any) -> NDArray[Any]:
        """Return y, (N, A) or one logit or value per choice (N, C), at an episode's begin."""
        return self._outputs(observations, None)[0]

    def _outputs(
        self, observations: Any, state: NDArray[Any] | None
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return y and the next state, (N, S)."""
        rows = flat_rows(observations, self.observation)
        scales = bool(self.layers) and self.layers[0].kind == "standardise"
        kept = rows.dtype == np.float64 and scales  # by moments in double precision
        count = len(rows)
        filled = np.zeros(
            (-(-count // BLOCK_ROWS) * BLOCK_ROWS, rows.shape[1]), rows.dtype if kept else "f4"
        )
        filled[:count] = rows
        memory = np.zeros((len(filled), self.state_width), np.float32)
        memory[:count] = carried("policy", state, (count, self.state_width))
        widths = [width for width, _ in memories(self.layers)]
        with torch.inference_mode():
            states = list(torch.split(torch.as_tensor(memory), widths, dim=1))
            y = run_layers(self.layers, torch.as_tensor(filled), count, states)[:count].numpy()
            following = torch.cat(states, dim=1)[:count].numpy() if states else memory[:count]
            return y, following

    @overload
    def predict(self, observation: Any, *, action_mask: Any = None) -> NDArray[Any]: ...
    @overload
    def predict(
        self,
        observation: Any,
        *,
        action_mask: Any = None,
        state: Float32Array | None,
        episode_start: Any = False,
    ) -> tuple[NDArray[Any], Float32Array]: ...
    def predict(
        self,
        observation: Any,
        *,
        action_mask: Any = None,
        state: Float32Array | EllipsisType | None = ...,
        episode_start: Any = False,
    ) -> NDArray[Any] | tuple[NDArray[Any], Float32Array]:
        """Return the action for one observation, or for several with a leading axis N.

        ``action_mask``, 0 for illegal choices, is for as many; None takes the part of that name of
        the observation. A policy of masks needs one. With ``state``, return also the next one, as
        an agent's `predict` does; a policy with a memory needs it.

        Raises:
            InputError: The observation is of another kind or size, or is not finite; a mask is
                missing, or leaves no legal action; a state is missing or of another size.
        """
        if state is ... and self.state_width:
            expected = "state=..., because the policy has a memory"
            do = "write action, state = policy.predict(observation, state=state), from None on"
            refuse(InputError, "policy", expected=expected, got="none", do=do)
        if action_mask is None:
            action_mask = self._mask_in(observation)
        if action_mask is None and self.masks:
            part = f" or observation['{MASK}']" if self.masks == "observation" else ""
            told = f"because {self.masks}['{MASK}'] told the legal actions in training"
            refuse(InputError, "policy", expected=f"{MASK}=...{part}, {told}", got="none")
        alone = is_single(observation, self.observation)
        rows = flat_rows(with_axis(observation) if alone else observation, self.observation)
        require_finite("policy: observation", rows)
        before = None if state is ... else state
        memory = carried("policy", before, (len(rows), self.state_width), episode_start)
        actions, following = self.step(rows, memory, action_mask=action_mask)
        if alone:
            actions, following = actions[0], following[0]
        return actions if state is ... else (actions, following)

    def act(
        self, observations: Any, noise: NDArray[Any] | None = None, action_mask: Any = None
    ) -> NDArray[Any]:
        """Return actions as the environment takes them, (N, *shape), of a policy without a memory.

        Args:
            observations: (N, *shape), flat rows (N, O), or by name where there are several.
            noise: Standard normal, (N, A), or Gumbel of y's shape for choices; None acts without
                chance, as a policy without ``log_std`` always does.
            action_mask: 0 for illegal choices, of y's shape; None takes ``"action_mask"`` of the
                observations, and allows all where there is none.

        Raises:
            InputError: Observations are of another size, the policy has a memory, or a mask leaves
                no legal action.
        """
        if self.state_width:
            expected = "a state, because the policy has a memory"
            advice = "write actions, state = policy.step(observations, state), from None on"
            refuse(InputError, "policy", expected=expected, got="none", do=advice)
        return self.step(observations, None, noise, action_mask)[0]

    def draw_noise(self, rng: np.random.Generator, rows: int) -> NDArray[np.float32]:
        """Return what `step` draws actions with, (N, width): Gumbel's where it chooses."""
        draw = rng.gumbel if self.output.chooses else rng.standard_normal
        return np.asarray(draw(size=(rows, self.width)), np.float32)

    def step(
        self,
        observations: Any,
        state: NDArray[Any] | None,
        noise: NDArray[Any] | None = None,
        action_mask: Any = None,
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return what `act` does for rows of which ``state``, (N, S), is remembered, and the next.

        A row of zeros, or None for all, stands for an episode that begins.
        """
        (y, following), output = self._outputs(observations, state), self.output
        if action_mask is None:
            action_mask = self._mask_in(observations)
        if noise is not None and output.chooses:
            y = y + noise
        elif noise is not None and output.log_std is not None:
            y = (y + output.log_std.exp().numpy() * noise).astype(np.float32)
        if action_mask is not None:
            if not output.chooses:
                expected, got = f"no {MASK}, because the policy acts by numbers", "one"
                refuse(InputError, "policy", expected=expected, got=got)
            legal = legal_choices("policy", action_mask, *y.shape)
            counts = y.shape[1:] if output.counts is None else output.counts.tolist()
            require_legal("policy", legal, counts)
            y = np.where(legal, y, np.finfo(np.float32).min)
        shape, dtype = self.action.get("shape", ()), self.action.get("dtype", "int64")
        self._remember(y, following)
        return output.decide(y, shape, dtype), following

    def _remember(self, y: NDArray[Any], following: NDArray[Any]) -> None:
        """Let states that ``following`` y, (N, S), remember what was decided."""
        first = 0
        for width, is_action in memories(self.layers):
            if is_action:
                following[:, first : first + width] = self.output.remembered(y)
            first += width

    def _mask_in(self, observations: Any) -> Any:
        """Return the mask among named observations; None if none is there, or it is learned from.

        Files of earlier versions do not say that there are masks.
        """
        if not (self.output.chooses and isinstance(observations, Mapping)):
            return None
        learned = any(name == MASK for name, _ in self.observation.get("parts", ()))
        return None if learned else cast("Mapping[str, Any]", observations).get(MASK)

    def _require_fit(self) -> None:
        """Try the shapes of all layers and of the output, without numbers."""
        width, wanted = self.observation_dim, self.width
        try:
            x = torch.zeros((BLOCK_ROWS, width), device="meta")
            y = tuple(run_layers(_frozen(self.layers, device="meta"), x, 1).shape)
        except (RuntimeError, ValueError, TypeError, IndexError, OverflowError) as error:
            told = f"policy: expected layers that fit together, from {width} numbers to {wanted}"
            raise CheckpointError(f"{told}, got {str(error).splitlines()[0]}.") from error
        shape = tuple(self.action.get("shape", ()))
        ends = {name: tuple(t.shape) for name, t in self.output.tensors().items()}
        spread = ends.pop("log_std", (wanted,))
        bounds: dict[str, tuple[int, ...]] = {"low": shape, "high": shape}
        if self.output.kind == "choice":
            bounds = {"choices": (wanted, *shape)}
        elif self.output.kind == "factors":
            bounds = {"low": shape, "counts": (self.action_dim,)}
        counts = self.output.counts
        known = self.output.kind in _OUTPUTS and (counts is None or bool((counts > 0).all()))
        known &= all(width == wanted for width, is_action in memories(self.layers) if is_action)
        if not known or y != (BLOCK_ROWS, wanted) or spread != (wanted,) or ends != bounds:
            expected = f"an output of {', '.join(_OUTPUTS)} of {wanted} numbers, with {bounds}"
            got = f"{self.output.kind!r} of {y[1:]}, with {ends}"
            refuse(CheckpointError, "policy", expected=expected, got=got)

    def tensors(self) -> dict[str, Tensor]:
        """Return every tensor by its name in the file."""
        own = {f"output.{name}": tensor for name, tensor in self.output.tensors().items()}
        return {**dict(_named(self.layers, "layers")), **own}

    def identity(self) -> dict[str, Any]:
        """Return what the content id covers beside the tensors."""
        return {
            "format": FORMAT if self.contract is None else CONTRACT_FORMAT,
            **({} if self.contract is None else {"contract": self.contract.facts()}),
            "observation": dict(self.observation),
            "action": dict(self.action),
            "layers": _layer_facts(self.layers),
            "output": self.output.kind,
            "task": dict(self.task) or None,
            "seat": self.seat,
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the policy as plain values and copies of its tensors."""
        tensors = {name: t.contiguous().clone() for name, t in self.tensors().items()}
        return {"header": self.header(), "tensors": tensors}

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> "PortableNetwork":
        """Return the policy that `state_dict` described.

        Raises:
            CheckpointError: Something is missing, was changed, or does not fit together.
        """
        with _refusing("policy"):
            return _assembled(state["header"], dict(state["tensors"]))

    def header(self) -> dict[str, Any]:
        """Return everything but the tensors."""
        return {**self.identity(), "content_id": self.content_id, "facts": dict(self.facts)}

    def digest(self) -> str:
        """Return the content id of what is in memory now."""
        material = sha256(canonical_json(self.identity()))
        for name, tensor in sorted(self.tensors().items()):
            about = [name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]
            material.update(canonical_json(about) + tensor.contiguous().numpy().tobytes())
        return material.hexdigest()


def flat_network(
    layers: Sequence[Layer], inputs: int, output: Output, **fields: Any
) -> PortableNetwork:
    """Return a policy of states (``inputs``,), float32; ``fields`` are further ones."""
    example: Any = output.low if output.choices is None else output.choices[0]
    box = {"kind": "box", "dtype": "float32"}
    return PortableNetwork(
        layers=tuple(layers),
        output=output,
        observation={**box, "shape": [inputs]},
        action={**box, "shape": list(np.shape(example))},
        **fields,
    )


def perceptron(
    weights: Sequence[Tensor],
    activation: str,
    output: Output,
    *,
    standardized: tuple[Tensor, Tensor] | None = None,
    **fields: Any,
) -> PortableNetwork:
    """Return the policy y = W_K act(... act(W_1 x + b_1)) + b_K.

    Args:
        weights: W_1, b_1, ..., W_K, b_K.
        activation: ``"relu"``, ``"tanh"``, ``"elu"``, ``"silu"`` or ``"gelu"``.
        output: From y to actions.
        standardized: Mean and spread of states, (O,): x = clip((s - mean) / spread, -10, 10).
        fields: As in `flat_network`.
    """
    layers: list[Layer] = []
    if standardized is not None:
        mean, spread = standardized
        layers.append(Layer("standardise", {"limit": CLIP}, {"mean": mean, "spread": spread}))
    for weight, bias in zip(weights[::2], weights[1::2], strict=True):
        layers += [Layer("linear", tensors={"weight": weight, "bias": bias}), Layer(activation)]
    return flat_network(layers[:-1], weights[0].shape[1], output, **fields)


def save_policy_file(network: PortableNetwork, path: Path) -> Path:
    """Write ``network``, durably, over an older file; return ``path``.

    Raises:
        StorageError: The file system refused.
    """
    header, tensors = network.state_dict().values()
    metadata = {_KEY: _sealed(header).decode()}
    atomic_write_bytes(path, tensor_files.save(tensors, metadata=metadata))
    return path


def policy_path(path: Path, seat: str = "") -> Path:
    """Return the policy file of ``seat`` beside ``path``: its name without ``.pt``, the seat's."""
    stem = path.name.removesuffix(SUFFIX).removesuffix(".pt")
    return path.with_name(f"{stem}.{seat}".rstrip(".") + SUFFIX)


def load_policy_file(path: Path) -> PortableNetwork:
    """Return the policy in ``path``.

    Raises:
        CheckpointError: The file is missing, damaged, changed, or of another format.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        told = f"{path}: expected a policy file, got '{error.strerror}'; check the name."
        raise CheckpointError(told) from error
    with _refusing(str(path)):
        return _assembled(_read_header(data), tensor_files.load(data))


@contextmanager
def _refusing(source: str) -> Generator[None]:
    """Turn what damaged data raises into one error that names ``source``."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"{source}: {error}") from error
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise CheckpointError(
            f"{source}: expected a policy file ({FORMAT}), got a damaged or another one: "
            f"{type(e).__name__} {e}; restore it, or export the policy again."
        ) from e


def _assembled(header: Mapping[str, Any], tensors: dict[str, Tensor]) -> PortableNetwork:
    """Return the policy of a header and all of its tensors."""
    layers = _read_layers(header["layers"], "layers", tensors, 0)
    ends = {name: tensors.pop(f"output.{name}", None) for name in _ARRAYS}
    arrays = {name: None if end is None else end.numpy() for name, end in ends.items()}
    spread = tensors.pop("output.log_std", None)
    known = {name: header[name] for name in ("observation", "action", "seat", "facts")}
    if "contract" in header:
        known["contract"] = TaskContract.from_facts(header["contract"])
    output = Output(kind=header["output"], log_std=spread, **arrays)
    network = PortableNetwork(layers=layers, output=output, task=header["task"] or {}, **known)
    if tensors or network.content_id != header["content_id"]:
        expected = f"the policy {header['content_id']} and no tensors beside it"
        got, advice = f"{network.content_id} and {sorted(tensors)}", _CHANGED
        refuse(CheckpointError, "content", expected=expected, got=got, do=advice)
    return network


def _read_header(data: bytes) -> dict[str, Any]:
    """Return our part of the header, which is as it was written."""
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    if len(data) > MAX_BYTES or length > MAX_HEADER:
        expected = f"at most {MAX_BYTES} bytes and a header of {MAX_HEADER}"
        refuse(CheckpointError, "policy", expected=expected, got=f"{len(data)} and {length}")
    outer = json.loads(data[_LENGTH_BYTES : _LENGTH_BYTES + length])
    if len(outer) - 1 > MAX_TENSORS:
        expected = f"at most {MAX_TENSORS} tensors"
        refuse(CheckpointError, "policy", expected=expected, got=len(outer))
    metadata = outer["__metadata__"]
    text = metadata[_KEY].encode()
    header = json.loads(text)
    found = header.get("format")
    if found != (CONTRACT_FORMAT if "contract" in header else FORMAT):
        advice = "it is of another program or a newer release, so upgrade the package"
        expected = f"the format {FORMAT}"
        refuse(CheckpointError, "policy", expected=expected, got=repr(found), do=advice)
    rest = {name: value for name, value in header.items() if name != "sha256"}
    if len(metadata) != 1 or text != _sealed(rest):
        expected = "the header that its own checksum covers"
        refuse(CheckpointError, "policy", expected=expected, got="another", do=_CHANGED)
    return header


def _sealed(header: Mapping[str, Any]) -> bytes:
    """Return a header with its checksum, as files hold it."""
    return canonical_json({**header, "sha256": sha256_bytes(canonical_json(header))})


def _read_layers(
    told: Sequence[Mapping[str, Any]], place: str, tensors: dict[str, Tensor], depth: int
) -> tuple[Layer, ...]:
    """Return layers; their tensors leave ``tensors``."""
    if depth > MAX_DEPTH:
        expected = f"parts at most {MAX_DEPTH} deep"
        refuse(CheckpointError, "policy", expected=expected, got="deeper ones")
    layers: list[Layer] = []
    for index, each in enumerate(told):
        kind = KINDS.get(each["kind"])
        if kind is None:
            expected, got = f"layers of {', '.join(KINDS)}", repr(each["kind"])
            refuse(CheckpointError, "policy", expected=expected, got=got, do="upgrade the package")
        numbers = {name: each[name] for name in kind.numbers}
        own = {name: tensors.pop(f"{place}.{index}.{name}") for name in kind.tensors}
        inner = [
            _read_layers(part, f"{place}.{index}.parts.{n}", tensors, depth + 1)
            for n, part in enumerate(each.get("parts", ()))
        ]
        layers.append(Layer(each["kind"], numbers, own, tuple(inner)))
    return tuple(layers)


def _frozen(layers: Sequence[Layer], device: str = "cpu") -> tuple[Layer, ...]:
    """Return layers with copies of their tensors."""

    def copied(layer: Layer) -> Layer:
        named = layer.tensors.items()
        own = {name: t.detach().to(device, copy=True).contiguous() for name, t in named}
        return layer._replace(tensors=own, parts=tuple(_frozen(p, device) for p in layer.parts))

    return tuple(map(copied, layers))


def _named(layers: Sequence[Layer], place: str) -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor with its name in the file."""
    for index, layer in enumerate(layers):
        for name, tensor in layer.tensors.items():
            yield f"{place}.{index}.{name}", tensor
        for n, part in enumerate(layer.parts):
            yield from _named(part, f"{place}.{index}.parts.{n}")


def _layer_facts(layers: Sequence[Layer]) -> list[dict[str, Any]]:
    """Return layers as JSON values."""
    facts: list[dict[str, Any]] = []
    for layer in layers:
        parts = {"parts": [_layer_facts(part) for part in layer.parts]} if layer.parts else {}
        facts.append({"kind": layer.kind, **layer.numbers, **parts})
    return facts
