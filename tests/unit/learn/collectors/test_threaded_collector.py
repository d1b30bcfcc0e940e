"""Collection in a thread: errors, stop, pauses, versions, ratio."""

import threading
import time
from unittest.mock import ANY

import numpy as np
import pytest
import torch

from cadenza.core.types import DictResponse
from cadenza.learn import Callback, Trainer
from cadenza.learn.algorithms.sac import AgentProxyWrapper
from cadenza.learn.callbacks import Checkpointer, CheckpointLoader
from cadenza.learn.collectors import SampleInsertRatio, ThreadedGymCollector
from cadenza.learn.collectors.threaded import CollectorStuckError
from tests.unit.learn.collectors.collection_parts import (
    NoisyPolicy,
    RecordingMemory,
    batches,
    parts,
)
from tests.unit.learn.env.counting_env import TERMINATED

LONG = ((50, TERMINATED),)
#: No wait in these tests should come near this; it only keeps a broken one from hanging.
PATIENCE_S = 800.0


def wait_until(is_true):
    deadline = time.monotonic() + PATIENCE_S
    while not is_true():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.001)


class Waits(Callback):
    """Lets a training step last until something is true."""

    def __init__(self, is_true):
        super().__init__()
        self.is_true = is_true

    def begin_batch(self):
        wait_until(self.is_true)


class Shifting(Callback):
    """Changes the weights in every step, in two halves."""

    def __init__(self, policy):
        super().__init__()
        self.policy = policy

    def backward(self, bp_step):
        with torch.no_grad():
            self.policy.layer.bias.fill_(bp_step)
        time.sleep(0.002)
        with torch.no_grad():
            self.policy.offset.fill_(bp_step)


class Exploding(RecordingMemory):
    """Fails at the ``at``-th call."""

    def __init__(self, at):
        super().__init__()
        self.at = at

    def add(self, observations, responses):
        super().add(observations, responses)
        if len(self.added) == self.at:
            raise ZeroDivisionError("the memory broke")


def test_collection_runs_beside_training_and_ends_with_it():
    wrapper, agent, memory = parts(LONG, LONG)
    closed = []
    wrapper.close = lambda: closed.append(True)
    collector = ThreadedGymCollector(wrapper, agent, memory, warmup_steps=3)
    seen = []
    waits = Waits(lambda: seen.append(collector.inf_step) or collector.inf_step >= 40)
    trainer = Trainer([collector, waits], batches(2))
    trainer.train()
    assert trainer.state["inf_step"] >= 40
    assert closed == [True]
    assert not [t for t in threading.enumerate() if t.name == "ThreadedGymCollector"]
    assert collector.inf_step == len(memory.transitions())
    assert memory.transitions()[:2] == [(2, (0, 1, 0), ANY), (3, (1, 1, 0), ANY)]


def test_error_of_the_thread_stops_training_and_is_raised_there():
    wrapper, agent, _ = parts(LONG)
    memory = Exploding(at=5)
    collector = ThreadedGymCollector(wrapper, agent, memory)
    steps = []

    def endless():
        while True:
            steps.append(1)
            time.sleep(0.001)
            yield from batches(1)

    with pytest.raises(ZeroDivisionError, match="the memory broke") as caught:
        Trainer([collector], endless()).train()
    assert "raised in the thread of ThreadedGymCollector" in caught.value.__notes__
    assert len(memory.added) == 5
    assert not [t for t in threading.enumerate() if t.name == "ThreadedGymCollector"]


def test_thread_acts_with_published_versions_only():
    acted = []

    class Watching(NoisyPolicy):
        def forward(self, obs):
            acted.append((float(self.layer.bias[0]), float(self.offset[0])))
            return super().forward(obs)

    policy = Watching()
    wrapper, agent, memory = parts(LONG, policy=policy)
    collector = ThreadedGymCollector(wrapper, agent, memory, publish_every=2)
    waits = Waits(lambda: collector.acting_version == collector.snapshots.version)
    trainer = Trainer([collector, waits, Shifting(policy)], batches(60))
    trainer.train()
    assert [(bias, offset) for bias, offset in acted if bias != offset] == []
    published = {float(2 * version) for version in range(31)}
    # The last one comes with the end of training: the thread may stop before it acts with it.
    assert published - {60.0} <= {bias for bias, _ in acted} <= published
    assert collector.snapshots.version == 31  # one at the start, one every other step


def test_ratio_holds_between_rows_sampled_and_transitions_inserted():
    wrapper, agent, memory = parts(LONG, LONG)
    ratio = SampleInsertRatio(8.0)
    collector = ThreadedGymCollector(wrapper, agent, memory, warmup_steps=5, ratio=ratio)
    trainer = Trainer([collector], batches(50, size=32))
    gaps = []

    class Watch(Callback):
        def backward(self):
            gaps.append(8.0 * ratio.inserted - ratio.sampled)

    trainer = Trainer([collector, Watch()], batches(50, size=32))
    trainer.train()
    assert ratio.sampled == 50 * 32
    # Neither side is ahead by more than one call: a batch of 32 or 2 transitions worth 16 rows.
    assert max(gaps) - min(gaps) <= 32.0 + 16.0


def test_collection_rests_while_checkpoints_are_written_and_goes_on_afterwards(tmp_path):
    wrapper, agent, memory = parts(LONG, replay=True)
    collector = ThreadedGymCollector(wrapper, agent, memory, pause_every=3)
    counts = []

    class SlowDisk:
        name = "slow"

        def state_dict(self):
            before = collector.inf_step
            time.sleep(0.02)
            counts.append((before, collector.inf_step, len(memory.transitions())))
            return {}

        def load_state_dict(self, *_):
            pass

    checkpointer = Checkpointer(
        restorees=[SlowDisk(), collector],
        run_root=tmp_path,
        checkpoint_interval=3,
        save_at_end=True,
    )
    progress = Waits(lambda: collector.inf_step > (counts[-1][1] if counts else 0))
    Trainer([collector, checkpointer, progress], batches(7)).train()
    assert len(counts) == 3  # steps 3 and 6, and the end
    for before, after, remembered in counts:
        assert before == after == remembered
    assert counts[0][0] < counts[1][0]
    restored = ThreadedGymCollector(*parts(LONG, replay=True))
    loader = CheckpointLoader(restorees=[restored], run_root=tmp_path, checkpoint_index=1)
    trainer = Trainer([loader, restored], [])
    trainer.train()
    assert restored.inf_step >= counts[1][0]


def test_hanging_environment_is_reported():
    wrapper, agent, memory = parts(LONG)
    release = threading.Event()
    stepping = threading.Event()
    step = wrapper.dict_step

    def hang(responses, **options):
        if threading.current_thread() is not threading.main_thread():
            stepping.set()
            release.wait(PATIENCE_S)
        return step(responses, **options)

    wrapper.dict_step = hang
    collector = ThreadedGymCollector(wrapper, agent, memory, join_timeout_s=0.05)
    with pytest.raises(BaseExceptionGroup) as caught:
        Trainer([collector, Waits(stepping.is_set)], batches(1)).train()
    assert isinstance(caught.value.exceptions[0], CollectorStuckError)
    assert isinstance(caught.value.exceptions[0], TimeoutError)
    assert "expected the collecting thread to stop within 0.05 s" in str(caught.value.exceptions[0])
    (thread,) = (t for t in threading.enumerate() if t.name == "ThreadedGymCollector")
    release.set()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


class OwnAgent:
    """An agent as Emote's interface wants it, with a policy in itself and a count of its calls."""

    input_names, output_names = ("obs",), ("actions",)

    def __init__(self, policy):
        self.network = policy
        self.calls = 0

    @property
    def policy(self):
        return self.network

    def __call__(self, observations):
        self.calls += 1
        seen = torch.tensor(np.stack([o.array_data["obs"] for o in observations.values()]))
        with torch.no_grad():
            answers = self.network(seen.float()).numpy()
        return {
            agent: DictResponse({"actions": row}, {})
            for agent, row in zip(observations, answers, strict=True)
        }


@pytest.mark.parametrize("is_wrapped", [False, True])
def test_agent_without_with_policy_acts_as_a_copy_that_follows_the_versions(is_wrapped):
    acted, networks = [], set()

    class Watching(NoisyPolicy):
        def forward(self, obs):
            networks.add(self)
            acted.append((float(self.layer.bias[0]), float(self.offset[0])))
            return super().forward(obs)

    policy = Watching()
    wrapper, _, memory = parts(LONG)
    own = OwnAgent(policy)
    agent = AgentProxyWrapper(inner=own) if is_wrapped else own
    collector = ThreadedGymCollector(wrapper, agent, memory, warmup_steps=3)
    waits = Waits(lambda: collector.acting_version == collector.snapshots.version)
    Trainer([collector, waits, Shifting(policy)], batches(20)).train()
    assert [(bias, offset) for bias, offset in acted if bias != offset] == []
    # The last one comes with the end of training: the thread may stop before it acts with it.
    assert set(map(float, range(20))) <= {bias for bias, _ in acted}
    assert own.calls == 1 + 3  # the trial step and the warm-up; then the copy takes over
    (copied,) = networks - {policy}
    assert copied.layer.weight.data_ptr() != policy.layer.weight.data_ptr()
