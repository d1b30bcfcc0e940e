"""A policy as an ONNX graph, and the proof that both compute the same.

How:     the policy is traced with `torch.export` and translated to one fixed operator set; then
         graph and policy run on the same random inputs, the graph in ONNX Runtime.
Inputs:  one for each part of an observation: ``obs``, or ``obs.camera``, ``obs.arm.joints``,
         ``obs.0`` where it is a Dict or a Tuple, in the order in which parts are flattened. The
         prefix keeps them apart from the names that torch gives to values inside.
Axes:    N = rows (agents), the only dynamic axis, named ``N`` in the graph.
Error:   |graph - policy| / max(1, |policy|), the largest over all elements of all outputs.
Limits:  the policy's control flow may not depend on the number of rows.
"""

import logging
import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cadenza.core import __version__
from cadenza.core.errors import CadenzaError, InputError, UnknownNameError, refuse
from cadenza.core.extras import load_extra
from cadenza.core.files import atomic_write_bytes
from cadenza.core.spaces import BoxSpace
from cadenza.learn.nn.encoders import AnySpace, has_parts, is_box, is_image, parts_of
from cadenza.learn.nn.space_facts import choice_counts, space_facts
from cadenza.learn.proxies import named_outputs, torch_dtype

if TYPE_CHECKING:
    import onnx

#: Operator set of the graphs; the oldest that torch's exporter writes without conversion.
OPSET: Final = 18
#: Largest error between graph and policy; a few hundred float32 roundings of numbers near one.
TOLERANCE: Final = 1e-5
#: Rows of the traced example; more than one, because torch treats an axis of size one as fixed.
_TRACED_ROWS: Final = 2
#: Rows of the inputs on which graph and policy are compared: the smallest batch and an odd one.
_COMPARED_ROWS: Final = (1, 7)
#: Packages of the extra ``onnx``.
_PACKAGES: Final = ("onnx", "onnxscript", "onnxruntime")
#: Logger that mentions at every export that torchvision, which nothing here uses, is absent.
_TALKATIVE: Final = "torch.onnx._internal.exporter._registration"
_IMAGE_LEVELS: Final = 256

#: Inputs or outputs of one call, in declared order.
Tensors: TypeAlias = tuple[Tensor, ...]


class OnnxExportError(CadenzaError, RuntimeError):
    """A policy could not be turned into an ONNX graph."""


class OnnxParityError(OnnxExportError):
    """The graph computes something else than the policy it was made from."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PolicySignature:
    """What a policy takes and gives.

    Attributes:
        inputs: Boxes by name, without the row axis.
        outputs: Names.
        device: Where the policy computes.
        choices: By name of an input of choices, how many there are in each place, and the first.
    """

    inputs: Mapping[str, BoxSpace]
    outputs: Sequence[str]
    device: torch.device
    choices: Mapping[str, tuple[Sequence[int], Sequence[int]]] = field(
        default_factory=dict[str, tuple[Sequence[int], Sequence[int]]]
    )

    def random_inputs(self, rows: int, generator: torch.Generator) -> Tensors:
        """Return one random tensor (rows, *shape) per input.

        Floats are standard normal, choices any of those there are, bytes span all levels, other
        integers are zeros and ones.
        """

        def drawn(name: str, box: BoxSpace) -> Tensor:
            shape, dtype = (rows, *box.shape), torch_dtype(box.dtype)
            if name in self.choices:
                counts, first = map(torch.tensor, self.choices[name])
                share = torch.rand((rows, len(counts)), generator=generator)
                return ((share * counts).long() + first).reshape(shape).to(dtype)
            if dtype.is_floating_point:
                return torch.randn(shape, generator=generator, dtype=dtype)
            bound = _IMAGE_LEVELS if dtype == torch.uint8 else 2
            return torch.randint(bound, shape, generator=generator).to(dtype)

        return tuple(drawn(name, box).to(self.device) for name, box in self.inputs.items())


def observation_signature(space: AnySpace, device: torch.device) -> PolicySignature:
    """Return inputs for every part of observations of ``space``, and the output ``actions``.

    Images of bytes stay bytes and choices integers; all else is float32.
    """
    inputs: dict[str, BoxSpace] = {}
    choices: dict[str, tuple[Sequence[int], Sequence[int]]] = {}
    for name, part in _leaves(space, "obs").items():
        facts = space_facts(part)
        if counts := choice_counts(facts):
            choices[name] = counts, np.ravel(facts["start"]).tolist()
        keeps = not is_box(part) or (is_image(part) and part.dtype == np.uint8)
        inputs[name] = BoxSpace(part.dtype if keeps else np.float32, part.shape)  # pyright: ignore[reportArgumentType] # leaves have both
    return PolicySignature(inputs=inputs, outputs=("actions",), device=device, choices=choices)


def _leaves(space: AnySpace, name: str) -> dict[str, AnySpace]:
    """Return the parts of ``space`` that have none of their own, by the names of their inputs."""
    if not has_parts(space):
        return {name: space}
    parts = [_leaves(part, f"{name}.{key}") for key, part in parts_of(space).items()]
    return {name: leaf for each in parts for name, leaf in each.items()}


class ObservationParts(nn.Module):
    """Parts of observations, (N, *shape) each, to what ``policy`` makes of flat rows, (N, O)."""

    def __init__(self, policy: nn.Module, space: AnySpace) -> None:
        super().__init__()
        self.policy = policy
        self._facts = [space_facts(part) for part in _leaves(space, "").values()]

    def forward(self, *parts: Tensor) -> Any:
        """Return what the policy does; after the parts comes what else it takes."""
        known = len(self._facts)
        pairs = zip(parts[:known], self._facts, strict=True)
        flat = [_flat(part, facts) for part, facts in pairs]
        return self.policy(torch.cat(flat, dim=1), *parts[known:])


def _flat(part: Tensor, facts: Mapping[str, Any]) -> Tensor:
    """Return rows, (N, O), one-hot where they are choices; `space_facts.flat_rows` in torch."""
    rows, counts = part.reshape(part.shape[0], -1), choice_counts(facts)
    if not counts:
        return rows.float()
    first = np.ravel(facts["start"]).tolist()
    known = [
        start + torch.arange(count, device=rows.device)
        for start, count in zip(first, counts, strict=True)
    ]
    columns = torch.split(rows, 1, dim=1)
    return torch.cat([(c == each).float() for c, each in zip(columns, known, strict=True)], dim=1)


def require_onnx() -> None:
    """Raise `MissingExtraError` unless the packages of the extra are installed."""
    for package in _PACKAGES:
        load_extra(package)


class DeclaredOutputs(nn.Module):
    """A policy that returns exactly its declared outputs, taken as `named_outputs` takes them."""

    def __init__(self, policy: nn.Module, outputs: Sequence[str]) -> None:
        super().__init__()
        self.policy = policy
        self._names = tuple(outputs)

    def forward(self, *inputs: Tensor) -> Tensors:
        """Return one tensor (N, ...) per declared output."""
        # One result under two names needs two nodes in the graph.
        try:
            outputs = named_outputs("policy in evaluation mode", self.policy(*inputs), self._names)
        except (InputError, UnknownNameError) as error:
            raise OnnxExportError(str(error)) from error
        return tuple(output.clone() for output in outputs.values())


def trace_policy(
    policy: nn.Module, signature: PolicySignature, *, opset: int, generator: torch.Generator
) -> "onnx.ModelProto":
    """Return the graph, in the operator set ``opset``, of ``policy``, which is in evaluation mode.

    Raises:
        MissingExtraError: The extra ``onnx`` is not installed.
        OnnxExportError: torch cannot trace or translate the policy, or an output has no row axis.
    """
    require_onnx()
    example = signature.random_inputs(_TRACED_ROWS, generator)
    wrapped = DeclaredOutputs(policy, signature.outputs).eval()
    with torch.no_grad():
        for name, output in zip(signature.outputs, wrapped(*example), strict=True):
            if output.ndim == 0 or output.shape[0] != _TRACED_ROWS:
                owner, got = f"output {name!r}", tuple(output.shape)
                expected = f"shape ({_TRACED_ROWS}, ...) for {_TRACED_ROWS} rows"
                refuse(OnnxExportError, owner, expected=expected, got=got)
        rows = torch.export.Dim("N")
        exporter: Any = torch.onnx  # its signature is only partly typed
        with _quiet_exporter():
            try:
                program = exporter.export(
                    wrapped,
                    example,
                    input_names=list(signature.inputs),
                    output_names=list(signature.outputs),
                    opset_version=opset,
                    dynamo=True,
                    external_data=False,
                    dynamic_shapes=(tuple({0: rows} for _ in example),),
                    verbose=False,
                )
            except torch.onnx.OnnxExporterError as error:
                raise OnnxExportError(
                    f"policy {type(policy).__name__}: expected a module that torch.export can "
                    f"trace with {len(example)} input(s) of any number of rows, got: {error}"
                ) from error
    return program.model_proto


def describe(model: "onnx.ModelProto", version: int, by: str, metadata: Mapping[str, Any]) -> None:
    """Write producer, version and metadata into ``model``, in order."""
    model.producer_name, model.producer_version = "cadenza", __version__
    model.domain, model.model_version = "cadenza.learn", version
    model.doc_string = f"exported by {by}"
    del model.metadata_props[:]
    for key, value in metadata.items():
        model.metadata_props.add(key=key, value=str(value))


def write_policy(
    policy: nn.Module, signature: PolicySignature, path: Path, metadata: Mapping[str, Any]
) -> Path:
    """Write ``policy`` as an ONNX file once ONNX Runtime has agreed with it; return ``path``."""
    generator = torch.Generator().manual_seed(0)
    model = trace_policy(policy.eval(), signature, opset=OPSET, generator=generator)
    describe(model, 0, "Agent.export_onnx", metadata)
    graph = model.SerializeToString()
    check_parity(graph, policy, signature, tolerance=TOLERANCE, generator=generator)
    atomic_write_bytes(path, graph)
    return path


def check_parity(
    graph: bytes,
    policy: nn.Module,
    signature: PolicySignature,
    *,
    tolerance: float,
    generator: torch.Generator,
) -> float:
    """Return the largest error of the serialised ``graph`` against ``policy`` on random inputs.

    Raises:
        OnnxParityError: An output differs by more than ``tolerance``, in shape, or is not finite.
    """
    onnxruntime = load_extra("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        graph, sess_options=options, providers=["CPUExecutionProvider"]
    )
    wrapped = DeclaredOutputs(policy, signature.outputs).eval()
    worst = 0.0
    for rows in _COMPARED_ROWS:
        inputs = signature.random_inputs(rows, generator)
        with torch.no_grad(), _exact_convolutions():
            expected = [output.cpu().numpy() for output in wrapped(*inputs)]
        arrays = (tensor.cpu().numpy() for tensor in inputs)
        feed = dict(zip(signature.inputs, arrays, strict=True))
        got = session.run(list(signature.outputs), feed)
        for name, theirs, ours in zip(signature.outputs, got, expected, strict=True):
            error = _largest_error(name, np.asarray(theirs), ours)
            if not error <= tolerance:
                expected = f"the graph within {tolerance:.0e} of the policy"
                told = f"{error:.3g} on {rows} row(s)"
                advice = "remove randomness and branches on data from evaluation mode"
                owner = f"output {name!r}"
                refuse(OnnxParityError, owner, expected=expected, got=told, do=advice)
            worst = max(worst, error)
    return worst


def _largest_error(name: str, theirs: NDArray[Any], ours: NDArray[Any]) -> float:
    """Return the largest error of ``theirs``, relative where ``ours`` exceeds one."""
    owner, reference = f"output {name!r}", ours.astype(np.float64)
    if theirs.shape != ours.shape:
        expected, got = f"shape {ours.shape} as from the policy", f"{theirs.shape} from the graph"
        advice = "let no shape in the policy depend on the number of rows"
        refuse(OnnxParityError, owner, expected=expected, got=got, do=advice)
    if not np.isfinite(reference).all():
        expected, got = "finite values from the policy", "some that are not"
        advice = "its weights have diverged, so go back to an earlier checkpoint"
        refuse(OnnxParityError, owner, expected=expected, got=got, do=advice)
    error = np.abs(theirs.astype(np.float64) - reference) / np.maximum(1.0, np.abs(reference))
    return float(error.max(initial=0.0))


@contextmanager
def _quiet_exporter() -> Generator[None]:
    """Keep the exporter's remarks about torch itself from the user."""
    logger = logging.getLogger(_TALKATIVE)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


@contextmanager
def _exact_convolutions() -> Generator[None]:
    """Compute convolutions on CUDA in float32, not in the shorter format torch prefers there."""
    allowed = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = allowed
