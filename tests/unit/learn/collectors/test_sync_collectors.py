"""Collection in the training loop: what reaches the memory, counts, resume."""

import logging

import pytest
import torch

from cadenza.core.errors import CheckpointError, CheckpointKeyError, InputError, NotReadyError
from cadenza.core.payloads import deserialise, serialise
from cadenza.learn import Trainer
from cadenza.learn.callbacks import BackPropStepsTerminator
from cadenza.learn.collectors import GymCollector, SimpleGymCollector
from cadenza.learn.memory import MemoryLoader, MemoryTableProxy
from cadenza.learn.memory.builder import DictObsMemoryTable
from tests.unit.learn.collectors.collection_parts import batches, parts
from tests.unit.learn.env.counting_env import MODES, TERMINATED, TRUNCATED

SHORT = ((2, TERMINATED), (3, TRUNCATED))
LONG = ((50, TERMINATED),)


@pytest.mark.parametrize("mode", MODES)
def test_memory_gets_whole_episodes_in_order(mode):
    wrapper, agent, memory = parts(SHORT, mode=mode)
    collector = GymCollector(wrapper, agent, memory)
    collector.begin_training()
    collector.collect_multiple(9)
    # The environment's first two episodes were the trial step and the reset after it.
    by_agent = {}
    for seen, answered in memory.added:
        for identity, observation in seen.items():
            _, episode, t = observation.array_data["obs"]
            by_agent.setdefault(identity, []).append(
                (observation.episode_state.name, int(episode), int(t), identity in answered)
            )
    first, second = list(by_agent.values())[:2]
    assert first == [
        ("INITIAL", 1, 0, True),
        ("RUNNING", 1, 1, True),
        ("RUNNING", 1, 2, True),
        ("INTERRUPTED", 1, 3, False),
    ]
    assert second == [("INITIAL", 2, 0, True), ("RUNNING", 2, 1, True), ("TERMINAL", 2, 2, False)]


def test_warm_up_counts_transitions_of_all_environments():
    wrapper, agent, memory = parts(LONG, LONG, LONG)
    collector = GymCollector(wrapper, agent, memory, warmup_steps=4)
    assert collector.begin_training() == {"inf_step": 12}
    assert len(memory.transitions()) == 12


def test_resets_of_next_step_mode_are_no_transitions():
    one_step = ((1, TERMINATED),)
    wrapper, agent, memory = parts(one_step, mode="NextStep")
    collector = GymCollector(wrapper, agent, memory, warmup_steps=0)
    collector.begin_training()
    assert [collector.collect_data() for _ in range(4)] == [1, 0, 1, 0]
    assert collector.inf_step == len(memory.transitions()) == 2


# Of 24 steps with 2 environments, after a warm-up of one call: 2 + 2 * calls * (24 // interval).
@pytest.mark.parametrize(("interval", "calls", "expected"), [(10, 1, 6), (3, 2, 34), (25, 1, 2)])
def test_simple_collector_collects_in_every_step_that_the_interval_divides(
    interval, calls, expected
):
    wrapper, agent, memory = parts(LONG, LONG)
    collector = SimpleGymCollector(wrapper, agent, memory, False, 1, interval, calls_per_inf=calls)
    trainer = Trainer([collector], batches(24))
    trainer.train()
    assert trainer.state["inf_step"] == expected
    assert collector.inf_step == len(memory.transitions()) == expected


@pytest.mark.parametrize("limit", [None, 9])
def test_task_without_an_end_is_learned_from_in_a_memory_of_any_size(limit):
    wrapper, agent, _ = parts(((10**6, TERMINATED),))
    table = DictObsMemoryTable(
        spaces=wrapper.dict_space, use_terminal_column=True, maxlen=20, device="cpu"
    )
    memory = MemoryTableProxy(table, 1, use_terminal=True)
    collector = SimpleGymCollector(wrapper, agent, memory, False, 25, 1, max_episode_steps=limit)
    trainer = Trainer(
        [collector, BackPropStepsTerminator(50)], MemoryLoader(table, 32, 1, "rows"), "rows"
    )
    trainer.train()
    batch = table.sample(500, 1)
    steps = batch["observation"]["obs"][:, 2]
    assert (batch["masks"] == 1.0).all()
    assert torch.equal(batch["next_observation"]["obs"][:, 2], steps + 1)
    assert steps.max() == (8 if limit else 73)  # 75 steps; two of them fill no part yet
    ended = memory.counters()["episodes_added"]
    assert ended == (9 if limit else 1)  # the running ninth one in part


def test_mean_return_of_ended_episodes_is_logged():
    wrapper, agent, memory = parts(((2, TERMINATED),), LONG)
    collector = GymCollector(wrapper, agent, memory, warmup_steps=2)
    collector.begin_training()
    assert collector.scalar_logs["episode/reward"] == 203.0  # second reset: 101 + 102


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("before", range(6))
def test_restored_collector_goes_on_bit_for_bit(mode, before):
    def build():
        wrapper, agent, memory = parts(SHORT, SHORT[1:], LONG, mode=mode, replay=True)
        return memory, SimpleGymCollector(
            wrapper, agent, memory, warmup_steps=before, max_episode_steps=4
        )

    memory, collector = build()
    collector.begin_training()
    state = deserialise(serialise({"collector": collector.state_dict()}), max_bytes=2**20)
    other_memory, other = build()
    other.load_state_dict(state["collector"])
    assert other.begin_training() == {"inf_step": collector.inf_step}
    memory.added.clear()
    for _ in range(12):
        assert collector.collect_data() == other.collect_data()
    assert memory.transitions() == other_memory.transitions()
    assert memory.endings() == other_memory.endings()
    assert dict(collector.scalar_logs) == dict(other.scalar_logs)


def test_state_leaves_the_weights_to_the_loss():
    wrapper, agent, memory = parts(LONG)
    collector = SimpleGymCollector(wrapper, agent, memory)
    state = collector.state_dict()
    assert list(state["policy_noise"]) == ["_extra_state"]
    with torch.no_grad():
        agent.policy.layer.bias.fill_(3.0)
    agent.policy.generator.manual_seed(9)
    collector.load_state_dict(state)
    assert agent.policy.layer.bias.tolist() == [3.0, 3.0]
    assert torch.equal(agent.policy.generator.get_state(), state["policy_noise"]["_extra_state"])


def test_environments_without_replay_interrupt_what_was_running(caplog):
    def build():
        wrapper, agent, memory = parts(LONG, LONG)
        return memory, SimpleGymCollector(wrapper, agent, memory, warmup_steps=3)

    before, collector = build()
    collector.begin_training()
    running = [agent for agent, _, _ in before.transitions()[:2]]
    memory, other = build()
    other.load_state_dict(collector.state_dict())
    with caplog.at_level(logging.WARNING):
        assert other.begin_training() == {"inf_step": 6}
    assert "2 running episodes end as interrupted" in caplog.text
    assert "wrap each environment in ReplayableEnv" in caplog.text
    assert memory.endings() == [
        (running[0], "INTERRUPTED", (0.0, 1.0, 3.0)),
        (running[1], "INTERRUPTED", (1.0, 1.0, 3.0)),
    ]
    other.collect_data()
    new = [agent for agent, _, _ in memory.transitions()]
    assert min(new) > max(running)


def test_environments_without_replay_deliver_endings_and_drop_unused_beginnings():
    def build():
        wrapper, agent, memory = parts(((1, TERMINATED),))
        return memory, SimpleGymCollector(wrapper, agent, memory, warmup_steps=1)

    _, collector = build()
    collector.begin_training()  # its last step ended an episode and began another one
    memory, other = build()
    other.load_state_dict(collector.state_dict())
    other.begin_training()
    assert [state for _, state, _ in memory.endings()] == ["TERMINAL"]


def test_calls_out_of_place_are_refused():
    collector = GymCollector(*parts(LONG))
    with pytest.raises(NotReadyError, match=r"expected begin_training\(\) first"):
        collector.collect_data()
    with pytest.raises(InputError, match="expected an integer >= 0, got -1"):
        collector.collect_multiple(-1)


def test_state_of_something_else_is_refused():
    collector = GymCollector(*parts(LONG))
    with pytest.raises(CheckpointKeyError, match=r"without \[\'environment\', \'observations\'"):
        collector.load_state_dict(collector.logs())
    with pytest.raises(CheckpointError, match="expected the state of 1 environments, got 2"):
        collector.load_state_dict(GymCollector(*parts(LONG, LONG)).state_dict())
