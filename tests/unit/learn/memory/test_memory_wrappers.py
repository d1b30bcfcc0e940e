"""Wrappers: what is forwarded, what is counted and written, what is exported and imported."""

import numpy as np
import pytest
import torch

from cadenza.core.errors import StorageError
from cadenza.core.payloads import deserialise, serialise
from cadenza.core.types import EpisodeState, MetaData
from cadenza.learn.memory.loading import MemoryImporterCallback
from cadenza.learn.memory.proxy import MemoryProxyWrapper, MemoryTableProxy
from cadenza.learn.memory.wrappers import LoggingProxyWrapper, MemoryExporterProxyWrapper
from tests.unit.learn.memory.memory_episodes import observation, play, response, table

INITIAL, RUNNING, TERMINAL = EpisodeState.INITIAL, EpisodeState.RUNNING, EpisodeState.TERMINAL


class Inner:
    def __init__(self):
        self.attribute = 3
        self.function = lambda: 4

    @property
    def value(self):
        return "property"

    @staticmethod
    def static():
        return "static"

    def method(self, number):
        return number + 1

    def both(self):
        return "inner"


class Outer(MemoryProxyWrapper):
    def both(self):
        return "outer"


@pytest.fixture(params=[1, 2], ids=["one level", "two levels"])
def wrapper(request):
    wrapped = Outer(Inner())
    return wrapped if request.param == 1 else MemoryProxyWrapper(wrapped)


def test_wrapper_forwards_methods_and_properties_but_not_over_its_own(wrapper):
    assert wrapper.method(1) == 2
    assert wrapper.value == "property"
    assert wrapper.both() == "outer"


@pytest.mark.parametrize("name", ["attribute", "function", "static"])
def test_wrapper_forwards_nothing_else(wrapper, name):
    with pytest.raises(AttributeError, match=f"'{name}' of the wrapped Inner is neither a method"):
        getattr(wrapper, name)


class Writer:
    """Remembers what is written."""

    def __init__(self):
        self.scalars, self.histograms, self.images, self.videos = {}, {}, {}, {}
        self.flushes = 0

    def add_scalar(self, tag, scalar_value, global_step):
        self.scalars[tag] = (scalar_value, global_step)

    def add_histogram(self, tag, values, global_step):
        self.histograms[tag] = (np.asarray(values).tolist(), global_step)

    def add_image(self, tag, img_tensor, global_step, *, dataformats):
        self.images[tag] = (tuple(img_tensor.shape), global_step, dataformats)

    def add_video(self, tag, vid_tensor, global_step, fps):
        self.videos[tag] = (vid_tensor.shape, global_step, fps)

    def flush(self):
        self.flushes += 1


def logging_proxy(interval=1, **options):
    writer = Writer()
    inner = MemoryTableProxy(table(), use_terminal=True, **options)
    return LoggingProxyWrapper(inner, writer, interval), writer


def test_counters_follow_observations_and_missing_responses():
    wrapper, _ = logging_proxy()
    play(wrapper, 1, 3)
    assert (wrapper.completed_inferences, wrapper.completed_episodes) == (4, 1)
    assert wrapper.size() == 3


def test_metadata_goes_to_windows_and_histograms():
    wrapper, _ = logging_proxy(interval=100)
    metadata = MetaData({"one": 1.0, "histogram:h": 2.0}, {"many": [3.0, 3.0]})
    for step in range(3):
        state = INITIAL if step == 0 else RUNNING
        wrapper.add({1: observation(1, step, state, metadata)}, {1: response(1, step)})
    keys = ["one", "many", "histogram:h", "inf_step", "nowhere", "histogram:nowhere"]
    values, lists = wrapper.get_report(keys)
    assert values == {
        "one": 1.0,
        "one/cumulative": 3.0,
        "many": 3.0,
        "many/cumulative": 18.0,
        "histogram:h": 2.0,
        "inf_step": 3,
    }
    assert lists == {"one": [1.0, 1.0, 1.0], "many": [3.0] * 6}


def test_written_values_and_their_x_axis():
    wrapper, writer = logging_proxy(interval=4)
    play(wrapper, 1, 2)  # 3 calls, 1 episode
    wrapper.report({"episode/reward": 5.0, "windowed[10]:group/w": 1.0}, {"episode/reward": [7.0]})
    wrapper.report({"histogram:group/h": 2.0}, {})
    wrapper.log_image("group/image", torch.zeros(4, 5, 3))
    wrapper.log_video("group/video", (np.zeros((1, 2, 3, 4, 5)), 24))
    assert writer.flushes == 0
    wrapper.add({2: observation(2, 0, INITIAL)}, {2: response(2, 0)})
    assert writer.flushes == 1
    assert writer.scalars["env_vs_episode/reward"] == (6.0, 1)
    assert writer.scalars["episode/reward"] == (6.0, 4)
    assert writer.scalars["episode/reward/cumulative"] == (12.0, 4)
    assert writer.scalars["group/w"] == (1.0, 4)
    assert writer.scalars["group/w/cumulative"] == (1.0, 4)
    assert writer.scalars["episode/completed"] == (1.0, 4)
    assert writer.scalars["training/inf_per_sec"][0] > 0.0
    assert writer.scalars["performance/inf_steps_per_sec"][0] > 0.0
    assert writer.scalars["memory/memproxy/add_sequence/timing/mean"][0] > 0.0
    assert writer.histograms["episode/reward_distribution"] == ([5.0, 7.0], 4)
    assert writer.histograms["env_vs_episode/reward_distribution"] == ([5.0, 7.0], 1)
    assert writer.histograms["group/h"] == ([2.0], 4)
    assert writer.images["group/image"] == ((4, 5, 3), 4, "HWC")
    assert writer.videos["group/video"] == ((1, 2, 3, 4, 5), 4, 24)


def test_logging_state_goes_through_disk_with_the_memory():
    wrapper, _ = logging_proxy()
    play(wrapper, 1, 3)
    wrapper.report({"a": 4.0}, {})
    other, _ = logging_proxy()
    other.load_state_dict(deserialise(serialise(wrapper.state_dict()), max_bytes=1 << 24))
    assert (other.completed_inferences, other.completed_episodes) == (4, 1)
    assert other.get_report(["a"]) == ({"a": 4.0, "a/cumulative": 4.0}, {"a": [4.0]})
    assert other.size() == 3


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def exporter(folder, steps=10_000, seconds=600, name="memory", inner=None):
    clock = Clock()
    memory = inner or MemoryTableProxy(table(), use_terminal=True)
    wrapper = MemoryExporterProxyWrapper(memory, name, steps, str(folder), seconds, clock=clock)
    return wrapper, clock


def test_export_waits_for_both_intervals_and_then_starts_them_anew(tmp_path):
    with pytest.warns(UserWarning, match="slow operation"):
        wrapper, clock = exporter(tmp_path, steps=3, seconds=60)
    file = tmp_path / "memory_export.safetensors"
    play(wrapper, 1, 5)  # six calls: enough steps, no time
    assert not file.exists()
    clock.now = 61.0
    play(wrapper, 2, 1, ending=None)
    assert file.is_file()
    first = file.read_bytes()
    clock.now = 200.0  # enough time, not enough steps: the next export is after step 7 + 3
    play(wrapper, 3, 2)
    assert file.read_bytes() == first
    play(wrapper, 4, 1, ending=None)
    assert file.read_bytes() != first
    assert wrapper.scalar_logs["memory/memory/export/timing/mean"] > 0.0


def test_export_steps_are_resumed(tmp_path):
    with pytest.warns(UserWarning, match="slow operation"):
        wrapper, _ = exporter(tmp_path / "a", steps=3, seconds=0)
    with pytest.warns(UserWarning, match="slow operation"):
        other, clock = exporter(tmp_path / "b", steps=3, seconds=0)
    play(wrapper, 1, 3, ending=None)
    other.load_state_dict(wrapper.state_dict(), load_hparams=False)
    assert other.state_dict()["export"] == {"steps": 0, "next_steps": 3}
    other.load_state_dict(wrapper.state_dict())
    clock.now = 1.0
    other.add({1: observation(1, 3, TERMINAL)}, {})
    assert (tmp_path / "b" / "memory_export.safetensors").is_file()


def export(folder, agents=(0, 1)):
    memory = MemoryTableProxy(table(), use_terminal=True)
    for agent in agents:
        play(memory, agent, 3)
    memory.store(str(folder / "memory_export"))


def test_importer_without_a_file_is_file_not_found(tmp_path):
    importer = MemoryImporterCallback(table(), "memory", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"memory_export\.safetensors: .*got no such file"):
        importer.restore_state()


def test_importer_stays_in_its_folder(tmp_path):
    export(tmp_path)
    (tmp_path / "inside").mkdir()
    for name in ("../memory_export", str(tmp_path / "memory_export"), "a\0b"):
        importer = MemoryImporterCallback(table(), "m", str(tmp_path / "inside"), name)
        with pytest.raises(StorageError, match="expected"):
            importer.restore_state()
