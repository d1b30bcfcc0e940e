"""Graphs of policies: inputs, outputs, dynamic rows, parity, and what is refused."""

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from cadenza.core.spaces import BoxSpace
from cadenza.learn.export.onnx_graph import (
    DeclaredOutputs,
    OnnxExportError,
    OnnxParityError,
    PolicySignature,
    check_parity,
    trace_policy,
)
from cadenza.learn.nn.initialization import default_linear


def signature(outputs=("actions",), **inputs: BoxSpace) -> PolicySignature:
    return PolicySignature(
        inputs=inputs or {"obs": BoxSpace(np.float32, (3,))},
        outputs=outputs,
        device=torch.device("cpu"),
    )


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def linear(outputs: int) -> nn.Linear:
    return default_linear(3, outputs, seeded())


def traced(policy: nn.Module, of: PolicySignature, opset: int = 18) -> onnx.ModelProto:
    return trace_policy(policy.eval(), of, opset=opset, generator=seeded())


def run(model: onnx.ModelProto, **inputs: np.ndarray) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, inputs)


def axes(values) -> dict[str, list[str | int]]:
    return {
        value.name: [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]
        for value in values
    }


class ImageAndVector(nn.Module):
    """Bytes, channels last, and a vector: two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3, stride=2)
        self.linear = nn.Linear(4 * 3 * 3 + 2, 5)

    def forward(self, image, vector):
        features = self.convolution(image.permute(0, 3, 1, 2).float() / 255.0).flatten(1)
        out = torch.tanh(self.linear(torch.cat([features, vector], dim=1)))
        return out[:, :2], out[:, 2:]


class Constant(nn.Module):
    def __init__(self, value):
        super().__init__()
        self.value = value

    def forward(self, *inputs):
        return self.value


IMAGE = BoxSpace(np.uint8, (8, 8, 3))
VECTOR = BoxSpace(torch.float32, (2,))


def test_dict_and_image_inputs_give_every_declared_output_for_any_number_of_rows():
    policy = ImageAndVector()
    of = signature(("actions", "extra"), image=IMAGE, vector=VECTOR)
    model = traced(policy, of)
    onnx.checker.check_model(model, full_check=True)
    assert axes(model.graph.input) == {"image": ["N", 8, 8, 3], "vector": ["N", 2]}
    assert axes(model.graph.output) == {"actions": ["N", 2], "extra": ["N", 3]}
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 18)]
    rng = np.random.default_rng(0)
    for rows in (1, 2, 5):
        image = rng.integers(0, 256, size=(rows, 8, 8, 3), dtype=np.uint8)
        vector = rng.normal(size=(rows, 2)).astype(np.float32)
        got = run(model, image=image, vector=vector)
        expected = policy(torch.from_numpy(image), torch.from_numpy(vector))
        for theirs, ours in zip(got, expected, strict=True):
            np.testing.assert_allclose(theirs, ours.detach().numpy(), atol=1e-5)
    error = check_parity(model.SerializeToString(), policy, of, tolerance=1e-5, generator=seeded())
    assert 0.0 <= error <= 1e-5


@pytest.mark.parametrize(
    ("result", "names", "expected"),
    [
        ("a", ("x",), "a"),
        ("a", ("x", "y"), "aa"),
        (("a", "p"), ("x",), "a"),  # the second is the log-probability
        (("a", "p", "b"), ("x", "y"), "ab"),
        (("a", "b"), ("x", "y"), "ab"),
        ({"y": "b", "x": "a", "z": "c"}, ("x", "y"), "ab"),
    ],
)
def test_results_are_matched_to_names_as_a_proxy_does(result, names, expected):
    tensors = {letter: torch.full((1, 1), float(ord(letter))) for letter in "abcp"}

    def fill(value):
        if isinstance(value, str):
            return tensors[value]
        if isinstance(value, dict):
            return {name: tensors[letter] for name, letter in value.items()}
        return tuple(tensors[letter] for letter in value)

    outputs = DeclaredOutputs(Constant(fill(result)), names)()
    assert [chr(int(output.item())) for output in outputs] == list(expected)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ((torch.zeros(1, 1),) * 4, r"expected 2 outputs for \['x', 'y'\] .*, got 4"),
        ({"x": torch.zeros(1, 1)}, r"expected .* return \['x', 'y'\], got \['x'\]"),
    ],
)
def test_other_results_than_declared_are_an_error(result, message):
    with pytest.raises(OnnxExportError, match=message):
        DeclaredOutputs(Constant(result), ("x", "y"))()


def test_policy_that_cannot_be_traced_is_an_error():
    class Branching(nn.Module):
        def forward(self, obs):
            return obs if obs.sum() > 0 else -obs

    with pytest.raises(OnnxExportError, match=r"policy Branching: expected a module that torch"):
        traced(Branching(), signature())


def test_wrong_graph_fails_the_parity_check():
    policy = linear(2)
    graph = traced(policy, signature()).SerializeToString()
    with torch.no_grad():
        policy.bias += 1e-3
    with pytest.raises(OnnxParityError, match=r"within 1e-05 of the policy, got 0\.00"):
        check_parity(graph, policy, signature(), tolerance=1e-5, generator=seeded())
    error = check_parity(graph, policy, signature(), tolerance=1e-2, generator=seeded())
    assert error == pytest.approx(1e-3, rel=0.01)  # |outputs| of such a layer stay near one


def test_error_is_relative_where_outputs_are_large():
    policy = linear(1)
    with torch.no_grad():
        policy.weight.zero_()
        policy.bias.fill_(1000.0)
    graph = traced(policy, signature()).SerializeToString()
    with torch.no_grad():
        policy.bias.fill_(1001.0)
    error = check_parity(graph, policy, signature(), tolerance=1e-2, generator=seeded())
    assert error == pytest.approx(1.0 / 1001.0)


def test_random_policy_fails_the_parity_check():
    class Noisy(nn.Module):
        def forward(self, obs):
            return obs + torch.randn_like(obs)

    torch_state = torch.random.get_rng_state()
    graph = traced(Noisy(), signature()).SerializeToString()
    with pytest.raises(OnnxParityError, match="remove randomness"):
        check_parity(graph, Noisy(), signature(), tolerance=1e-5, generator=seeded())
    torch.random.set_rng_state(torch_state)


def test_random_inputs_have_declared_types_and_depend_on_the_generator_alone():
    of = signature(
        image=IMAGE,
        flag=BoxSpace(np.bool_, ()),
        index=BoxSpace(np.int64, (2,)),
        wide=BoxSpace(np.float64, (1,)),
    )
    first, again = of.random_inputs(50, seeded()), of.random_inputs(50, seeded())
    assert [tensor.dtype for tensor in first] == [
        torch.uint8,
        torch.bool,
        torch.int64,
        torch.float64,
    ]
    assert [tuple(tensor.shape) for tensor in first] == [(50, 8, 8, 3), (50,), (50, 2), (50, 1)]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert first[0].max() > 200
    assert set(first[2].unique().tolist()) == {0, 1}
