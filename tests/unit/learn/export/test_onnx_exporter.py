"""Exports on request and at intervals: files, metadata, threads, and every refusal."""

import threading
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from cadenza import __version__
from cadenza.core.errors import ConfigurationError, NotReadyError
from cadenza.core.payloads import deserialise, serialise
from cadenza.core.spaces import BoxSpace, DictSpace, MDPSpace
from cadenza.learn.export import onnx_graph
from cadenza.learn.export.onnx_exporter import ExportTimeoutError, OnnxExporter, QueuedExport
from cadenza.learn.export.onnx_graph import OnnxParityError
from cadenza.learn.nn.gaussian_policy import GaussianMlpPolicy
from cadenza.learn.proxies import GenericAgentProxy

SPACES = MDPSpace(
    rewards=None,
    actions=BoxSpace(np.float32, (2,)),
    state=DictSpace(
        {
            "obs": BoxSpace(np.float32, (3,)),
            "other": BoxSpace(np.float32, (1,)),
            "epsilon": BoxSpace(np.float32, (2,)),
        }
    ),
)


def agent(policy: nn.Module | None = None, inputs=("obs",), outputs=("actions",)):
    seeded = torch.Generator().manual_seed(0)
    policy = policy or GaussianMlpPolicy(3, 2, [8], init_generator=seeded)
    return GenericAgentProxy(policy, "cpu", inputs, outputs)


def exporter(folder: Path, policy: nn.Module | None = None, **options) -> OnnxExporter:
    options = {"requires_epsilon": False, "directory": folder, **options}
    return OnnxExporter(agent(policy), SPACES, **options)


def metadata(item) -> list[tuple[str, str]]:
    return [(p.key, p.value) for p in onnx.load(item.filepath).metadata_props]


class Unexportable(nn.Module):
    def forward(self, obs):
        raise ArithmeticError("no such policy")


class Fake(OnnxExporter):
    """Stores a line of text in place of a graph, so that threads are tested in milliseconds."""

    failure: Exception | None = None

    def write(self, metadata):
        assert threading.get_ident() == self._owner
        if self.failure is not None:
            raise self.failure
        return self._storage.create_with_data(repr(metadata).encode())


def fake(folder: Path) -> Fake:
    return Fake(agent(), SPACES, False, folder)


class Asking(threading.Thread):
    """Asks for one export and keeps what came of it."""

    def __init__(self, exporter: OnnxExporter, **arguments) -> None:
        super().__init__(daemon=True)
        self._exporter = exporter
        self._arguments = arguments
        self.item = None
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            self.item = self._exporter.export_threadsafe(**self._arguments)
        except (ArithmeticError, OSError, RuntimeError) as error:
            self.error = error

    def wait_for_end(self) -> None:
        self.join(timeout=800)
        assert not self.is_alive()


def test_exported_file_computes_the_policy_and_says_where_it_comes_from(tmp_path):
    policy = GaussianMlpPolicy(3, 2, [8], init_generator=torch.Generator().manual_seed(0)).train()
    noise = policy.state_dict()["policy._extra_state"].clone()
    own = exporter(tmp_path, policy, interval=5)
    own.end_cycle()
    item = own.latest()
    assert own.cycle == 5
    assert all(part.training for part in policy.modules())
    assert torch.equal(policy.state_dict()["policy._extra_state"], noise)
    assert Path(item.filepath).name.startswith("savedmodel_")
    assert Path(item.filepath).suffix == ".onnx"
    assert [path.name for path in tmp_path.iterdir()] == [Path(item.filepath).name]
    model = onnx.load(item.filepath)
    onnx.checker.check_model(model, full_check=True)
    assert model.producer_name == "cadenza"
    assert model.producer_version == __version__
    assert model.model_version == 0
    assert model.doc_string == "exported by cadenza.learn.export.OnnxExporter"
    session = onnxruntime.InferenceSession(item.filepath, providers=["CPUExecutionProvider"])
    assert [i.name for i in session.get_inputs()] == ["obs"]
    obs = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
    got = session.run(["actions"], {"obs": obs})[0]
    with torch.no_grad():
        expected = policy.eval()(torch.from_numpy(obs)).numpy()
    np.testing.assert_allclose(got, expected, atol=1e-5)
    assert own.scalar_logs["onnx_export/parity_error"] <= 1e-5
    for name in ("create", "policycopy", "trace", "parity", "save"):
        assert own.scalar_logs[f"onnx_export/{name}_ms"] > 1e-3  # nothing is done in a microsecond


def test_noise_is_the_last_input_when_required(tmp_path):
    item = exporter(tmp_path, requires_epsilon=True).export()
    session = onnxruntime.InferenceSession(item.filepath, providers=["CPUExecutionProvider"])
    assert [(i.name, i.shape) for i in session.get_inputs()] == [
        ("obs", ["N", 3]),
        ("epsilon", ["N", 2]),
    ]
    obs, noise = np.zeros((2, 3), np.float32), np.ones((2, 2), np.float32)
    drawn = session.run(None, {"obs": obs, "epsilon": noise})[0]
    greedy = session.run(None, {"obs": obs, "epsilon": 0 * noise})[0]
    assert np.abs(drawn - greedy).min() > 0.1


def test_metadata_and_version_are_those_of_the_exporter_and_the_call(tmp_path):
    first = exporter(tmp_path)
    first.add_metadata("first", 1)
    first.add_metadata("second", "two")
    item = first.export({"third": 3.5, "first": "override"})
    assert metadata(item) == [("first", "override"), ("second", "two"), ("third", "3.5")]
    state = deserialise(serialise(first.state_dict()), max_bytes=2**20)
    resumed, fresh = exporter(tmp_path), exporter(tmp_path)
    resumed.add_metadata("first", 1)
    resumed.load_state_dict(state)
    item = resumed.export()
    assert metadata(item) == [("first", "1")]
    assert onnx.load(item.filepath).model_version == 1
    fresh.load_state_dict(state, load_hparams=False)
    assert fresh.state_dict()["version"] == 0


def test_failed_export_reaches_the_caller_and_leaves_no_file(tmp_path):
    own = exporter(tmp_path, Unexportable())
    with pytest.raises(ArithmeticError, match="no such policy"):
        own.export()
    assert own.items() == []
    assert list(tmp_path.iterdir()) == []


def test_graph_that_disagrees_with_the_policy_is_not_published(tmp_path, monkeypatch):
    own = exporter(tmp_path)
    trace = onnx_graph.trace_policy

    def trace_other(policy, *arguments, **options):
        other = GaussianMlpPolicy(3, 2, [8], init_generator=torch.Generator().manual_seed(1))
        return trace(other.eval(), *arguments, **options)

    monkeypatch.setattr(onnx_graph, "trace_policy", trace_other)
    with pytest.raises(OnnxParityError, match="within 1e-05 of the policy"):
        own.export()
    assert list(tmp_path.iterdir()) == []
    assert own.state_dict()["version"] == 0


def test_unknown_input_name_is_an_error(tmp_path):
    with pytest.raises(ConfigurationError, match=r"among \['epsilon', 'obs', 'other'\], got \['x'"):
        OnnxExporter(agent(inputs=("obs", "x")), SPACES, False, tmp_path)


def test_many_threads_each_get_their_own_file(tmp_path):
    own = fake(tmp_path)
    threads = [Asking(own, metadata={"who": number}) for number in range(8)]
    while any(thread.is_alive() for thread in threads):
        own.process_pending_exports()
    texts = [Path(thread.item.filepath).read_text() for thread in threads]
    assert texts == [f"{{'who': '{number}'}}" for number in range(8)]


def test_own_export_does_not_suffer_from_a_failed_request(tmp_path):
    own = fake(tmp_path)
    own.failure = RuntimeError("once")
    asking = Asking(own)
    while asking.is_alive():
        own.process_pending_exports()
    own.failure = None
    assert own.export().handle.handle == 0
    assert str(asking.error) == "once"


def test_request_that_nobody_serves_times_out_and_is_withdrawn(tmp_path):
    own = fake(tmp_path)
    asking = Asking(own, timeout_s=0.05)
    asking.wait_for_end()
    assert isinstance(asking.error, ExportTimeoutError)
    assert isinstance(asking.error, TimeoutError)
    assert "within 0.05 s" in str(asking.error)
    own.process_pending_exports()
    assert own.items() == []


def test_training_thread_may_not_wait_for_itself(tmp_path):
    with pytest.raises(NotReadyError, match=r"would wait for itself; call export\(\) here"):
        fake(tmp_path).export_threadsafe()


@pytest.mark.parametrize("method", ["export", "process_pending_exports"])
def test_other_threads_may_not_touch_the_policy(tmp_path, method):
    own, errors = fake(tmp_path), []

    def call() -> None:
        try:
            getattr(own, method)()
        except NotReadyError as error:
            errors.append(str(error))

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert f"OnnxExporter.{method}: expected a call from the thread that trains" in errors[0]
    assert own.items() == []


def test_end_of_training_refuses_waiting_and_later_requests_until_the_next_training(
    tmp_path, monkeypatch
):
    blocked, block = threading.Event(), QueuedExport.block_until_complete

    def note(request, *timeout):
        blocked.set()
        return block(request, *timeout)

    monkeypatch.setattr(QueuedExport, "block_until_complete", note)
    own = fake(tmp_path)
    waiting = Asking(own)
    assert blocked.wait(800)
    own.end_training()
    waiting.wait_for_end()
    late = Asking(own)
    late.wait_for_end()
    for asking in (waiting, late):
        assert isinstance(asking.error, NotReadyError)
        assert "expected training to run, but it has ended" in str(asking.error)
    assert own.export().handle.handle == 0  # the training thread may still write the last policy
    own.begin_training()
    again = Asking(own)
    while again.is_alive():
        own.end_batch()
    assert again.item.handle.handle == 1
