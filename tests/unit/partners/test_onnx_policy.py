from hashlib import sha256

import gymnasium
import numpy as np
import pytest
import torch

import cadenza
from cadenza.core.errors import CheckpointError, InputError
from cadenza.learn.export.onnx_exporter import EPSILON
from cadenza.partners import PartnerSpec, load_partner

pytest.importorskip("onnxruntime", reason="needs the extra onnx")
STATES = np.random.default_rng(0).normal(size=(6, 3))


def partner(name="policy.onnx", **fields):
    return load_partner(
        PartnerSpec(
            "onnx", 0, weights_uri=f"local://artifacts/{name}", extra={"uid": "arm"}, **fields
        )
    )


def obs_of(states):
    return {"agent": {"arm": {"state": states}}}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The artifacts folder."""
    monkeypatch.setenv("CADENZA_ARTIFACTS_ROOT", str(tmp_path))
    return tmp_path


def test_exported_agent_acts_as_in_torch(folder):
    agent = cadenza.PPO("Pendulum-v1", seed=0, num_envs=1)
    path = agent.export_onnx(folder / "policy.onnx")
    deployed = agent.deployed()
    with torch.no_grad():
        wanted = deployed(torch.tensor(STATES, dtype=torch.float32)).numpy()
    ours = partner(weights_sha256=sha256(path.read_bytes()).hexdigest())
    ours.reset(seed=0)
    np.testing.assert_allclose(ours.act(obs_of(STATES)), wanted, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(ours.act(obs_of(STATES[0])), wanted[0], rtol=1e-5, atol=1e-5)
    ours.bind(gymnasium.spaces.Box(-0.01, 0.01, (1,)))
    assert np.abs(ours.act(obs_of(STATES))).max() <= np.float32(0.01)


def write(path, nodes, inputs, constants=()):
    """Write a graph with inputs (N, ...), whose output ``actions`` has the shape of the last."""
    helper = pytest.importorskip("onnx").helper
    ends = [
        helper.make_tensor_value_info(name, 1, ["N", *shape])
        for name, shape in (*inputs.items(), ("actions", [*inputs.values()][-1]))
    ]
    made = [helper.make_node(name, takes, gives) for name, takes, gives in nodes]
    tensors = [helper.make_tensor(name, 1, [], [value]) for name, value in constants]
    graph = helper.make_graph(made, "policy", ends[:-1], ends[-1:], tensors)
    opset = [helper.make_opsetid("", 18)]
    path.write_bytes(
        helper.make_model(graph, opset_imports=opset, ir_version=10).SerializeToString()
    )


def test_noise_input_is_zero_or_drawn_from_the_episodes_generator(folder):
    nodes = [("Mul", ["factor", EPSILON], ["noise"]), ("Add", ["obs", "noise"], ["actions"])]
    write(folder / "noisy.onnx", nodes, {"obs": [3], EPSILON: [3]}, [("factor", 4.0)])
    noisy = partner("noisy.onnx")
    np.testing.assert_allclose(noisy.act(obs_of(STATES)), STATES, rtol=1e-6)
    rows = np.repeat(STATES[:1], 3000, axis=0)
    noisy.reset(seed=1)
    drawn = noisy.act(obs_of(rows), deterministic=False)
    np.testing.assert_allclose(drawn.std(axis=0), [4.0] * 3, rtol=0.06)
    noisy.reset(seed=1)
    again = noisy.act(obs_of(STATES[0]), deterministic=False)
    np.testing.assert_allclose(again, drawn[0], rtol=1e-5)


def test_file_that_is_absent_damaged_or_another_one_is_refused(folder):
    with pytest.raises(FileNotFoundError, match=r"policy\.onnx: file not found"):
        partner().reset()
    (folder / "policy.onnx").write_bytes(b"no graph")
    with pytest.raises(CheckpointError, match="expected an ONNX graph"):
        partner().reset()
    with pytest.raises(CheckpointError, match="expected weights with SHA-256 0000"):
        partner(weights_sha256="0" * 64).reset()


def test_state_of_another_length_or_graph_of_images_is_refused(folder):
    node = ("Tanh", ["obs"], ["actions"])
    write(folder / "flat.onnx", [node], {"obs": [3]})
    np.testing.assert_allclose(partner("flat.onnx").act(obs_of(STATES)), np.tanh(STATES), rtol=1e-5)
    with pytest.raises(InputError, match=r"expected length 3 .*graph's input.*got 4"):
        partner("flat.onnx").act(obs_of(np.zeros(4)))
    write(folder / "image.onnx", [node], {"obs": [3, 4, 4]})
    with pytest.raises(InputError, match=r"one input \(N, O\)"):
        partner("image.onnx").reset()


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
def test_graph_of_another_type_or_a_fixed_batch_plays_every_number_of_rows(folder, rows, dtype):
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Tanh()).to(dtype)
    torch.onnx.export(
        network,
        (torch.zeros(rows, 3, dtype=dtype),),
        str(folder / "policy.onnx"),
        input_names=["observation"],
        output_names=["mean"],
        dynamo=False,
    )
    with torch.no_grad():
        wanted = network(torch.tensor(STATES, dtype=dtype)).float().numpy()
    played = partner()
    tolerance = 2e-3 if dtype == torch.float16 else 1e-6
    onnx = pytest.importorskip("onnx")
    model = onnx.load(folder / "policy.onnx")  # as exporters leave it: the width is no number
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_param = "width"
    onnx.save(model, folder / "policy.onnx")
    for states, actions in ((STATES, wanted), (STATES[0], wanted[0]), (STATES[:1], wanted[:1])):
        ours = played.act(obs_of(states))
        assert ours.dtype == np.float32
        np.testing.assert_allclose(ours, actions, atol=tolerance)


def test_graph_that_cannot_take_its_own_shapes_or_whole_numbers_is_refused(folder):
    onnx = pytest.importorskip("onnx")
    write(folder / "policy.onnx", [("Tanh", ["obs"], ["actions"])], {"obs": [3]})
    model = onnx.load(folder / "policy.onnx")
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.INT64
    model.graph.node[0].op_type = "Identity"
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.INT64
    onnx.save(model, folder / "policy.onnx")
    with pytest.raises(InputError, match=r"of floats.*tensor\(int64\)"):
        partner().reset()
    shape = onnx.helper.make_tensor("shape", onnx.TensorProto.INT64, [2], [1, 3])
    write(folder / "policy.onnx", [("Reshape", ["obs", "shape"], ["actions"])], {"obs": [3]})
    model = onnx.load(folder / "policy.onnx")
    model.graph.initializer.append(shape)
    onnx.save(model, folder / "policy.onnx")
    with pytest.raises(InputError, match="dynamic batch axis"):
        partner().act(obs_of(STATES))
    one = ("ReduceMean", ["obs", "axes"], ["actions"])  # one row, however many states
    write(folder / "policy.onnx", [one], {"obs": [3]})
    model = onnx.load(folder / "policy.onnx")
    axes = onnx.helper.make_tensor("axes", onnx.TensorProto.INT64, [1], [0])
    model.graph.initializer.append(axes)
    onnx.save(model, folder / "policy.onnx")
    with pytest.raises(InputError, match=r"actions \(6, 3\), got \(1, 3\)"):
        partner().act(obs_of(STATES))


def test_actions_that_are_not_finite_are_refused(folder):
    write(folder / "policy.onnx", [("Sqrt", ["obs"], ["actions"])], {"obs": [3]})
    assert partner().act(obs_of(np.array([4.0, 9.0, 0.0]))).tolist() == [2.0, 3.0, 0.0]
    with pytest.raises(InputError, match="OnnxPartner action: expected finite"):
        partner().act(obs_of(np.array([4.0, -1.0, 0.0])))


def test_choices_without_an_axis_of_their_own_are_numbers_of_choices(folder):
    onnx = pytest.importorskip("onnx")
    write(folder / "policy.onnx", [("ArgMax", ["obs"], ["actions"])], {"obs": [3]})
    model = onnx.load(folder / "policy.onnx")
    model.graph.node[0].attribute.extend(
        [onnx.helper.make_attribute("axis", 1), onnx.helper.make_attribute("keepdims", 0)]
    )
    kind = onnx.helper.make_tensor_value_info("actions", onnx.TensorProto.INT64, ["N"])
    model.graph.output[0].CopyFrom(kind)
    onnx.save(model, folder / "policy.onnx")
    played = partner()
    played.bind(gymnasium.spaces.Discrete(3))
    chosen = played.act(obs_of(STATES))
    np.testing.assert_array_equal(chosen, STATES.argmax(axis=1)[:, None])
    assert played.act(obs_of(STATES[0])).shape == (1,)
