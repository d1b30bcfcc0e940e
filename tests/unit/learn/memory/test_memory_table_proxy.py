"""The proxy that builds episodes: lengths, endings, refusals, counters, resume."""

import logging

import numpy as np
import pytest

from cadenza.core.errors import CheckpointError, InputError, PreconditionError
from cadenza.core.payloads import deserialise, serialise
from cadenza.core.types import DictObservation, DictResponse, EpisodeState
from cadenza.learn.memory.proxy import Episode, MemoryTableProxy
from tests.unit.learn.memory.memory_episodes import observation, play, response, table

INITIAL, RUNNING = EpisodeState.INITIAL, EpisodeState.RUNNING
TERMINAL, INTERRUPTED = EpisodeState.TERMINAL, EpisodeState.INTERRUPTED


def proxy(**options):
    return MemoryTableProxy(table(), use_terminal=True, **options)


def test_episode_copies_arrays_that_the_environment_reuses():
    buffer = np.array([1.0])
    episode = Episode.from_initial({"a": buffer})
    buffer[0] = 9.0
    assert episode.data["a"][0].tolist() == [1.0]


def test_short_episodes_are_dropped_and_counted():
    memory = proxy(minimum_length_threshold=3)
    play(memory, 1, 2)
    play(memory, 2, 3)
    assert memory.memory_table.identities() == [2]
    assert memory.counters() == {
        "episodes_added": 1,
        "episodes_dropped_short": 1,
        "episodes_joined_late": 0,
    }


@pytest.mark.parametrize(
    ("seen", "answers", "message"),
    [
        (
            observation(1, 0, INITIAL),
            {1: response(1, 0)},
            "agent 1, which already has an ongoing episode",
        ),
        (
            DictObservation({}, TERMINAL, {"obs": np.zeros(3)}),
            {},
            r"expected rewards\['reward'\] for the last action",
        ),
        (
            DictObservation({"reward": 1.0}, RUNNING, {"other": np.zeros(3)}),
            {1: response(1, 1)},
            r"observation keys \['obs'\] of agent 1's first step in every step, got \['other'\]",
        ),
        (
            observation(1, 1),
            {1: DictResponse({}, {"other": 1.0})},
            r"response keys \['actions'\] .* got \['other'\]",
        ),
    ],
)
def test_step_that_does_not_continue_its_episode_is_refused_and_changes_nothing(
    seen, answers, message
):
    memory = proxy()
    play(memory, 1, 1, ending=None)
    with pytest.raises(PreconditionError, match=message):
        memory.add({1: seen}, answers)
    memory.add({1: observation(1, 1, TERMINAL)}, {})
    assert memory.memory_table.episode(1)["rewards"].tolist() == [[1.0]]
    assert issubclass(PreconditionError, AssertionError)
    assert issubclass(PreconditionError, ValueError)


@pytest.mark.parametrize("state", [INITIAL, RUNNING])
def test_missing_response_is_refused(state):
    with pytest.raises(PreconditionError, match="Mismatch between observations and responses!"):
        proxy().add({1: observation(1, 0, state)}, {})


def test_agent_that_joins_late_gets_no_reward_for_an_action_nobody_saw():
    """Its first observation is RUNNING: the reward in it belongs to an earlier action."""
    memory = proxy()
    memory.add({1: observation(1, 5)}, {1: response(1, 5)})
    memory.add({1: observation(1, 6)}, {1: response(1, 6)})
    memory.add({1: observation(1, 7, TERMINAL)}, {})
    rows = memory.memory_table.episode(1)
    assert rows["actions"][:, 0].tolist() == [105.5, 106.5]
    assert rows["rewards"].tolist() == [[6.0], [7.0]]
    assert memory.counters()["episodes_joined_late"] == 1


def test_ending_without_an_episode_is_a_warning(caplog):
    memory = proxy()
    with caplog.at_level(logging.WARNING):
        memory.add({1: observation(1, 1, TERMINAL)}, {})
        memory.add({1: observation(1, 1, TERMINAL)}, {})
    assert [record.message for record in caplog.records] == [
        "memproxy: agent 1 ended without an open episode"
    ] * 2
    assert memory.size() == 0


@pytest.mark.parametrize("length", [1, 2, 5])
@pytest.mark.parametrize("ending", [TERMINAL, INTERRUPTED])
def test_running_episode_is_stored_in_parts_that_have_every_window_once(length, ending):
    memory = MemoryTableProxy(table(), length, use_terminal=True)
    play(memory, 0, 100, ending=None)
    stored = memory.memory_table
    assert 100 - 32 - length < stored.size() <= 100 + 3 * length  # but for the last few steps
    memory.add({0: observation(0, 100, ending)}, {})
    windows = []
    for identity in stored.identities():
        rows = stored.episode(identity)
        steps = rows["obs"][:, 0]
        assert rows["rewards"][:, 0].tolist() == steps[1:].tolist()
        assert rows["actions"][:, 0].tolist() == (steps[:-1] + 0.5).tolist()
        windows += [tuple(steps[i : i + length]) for i in range(len(steps) - length)]
        is_last = steps[-1] == 100
        assert rows["terminal"] == [0.0 if is_last and ending is TERMINAL else 1.0]
    assert sorted(windows) == [tuple(range(i, i + length)) for i in range(101 - length)]
    assert memory.counters()["episodes_added"] == 1


@pytest.mark.parametrize("maxlen", [1, 7, 50, 99])
def test_table_smaller_than_an_episode_holds_its_newest_steps(maxlen):
    memory = MemoryTableProxy(table(maxlen=maxlen), use_terminal=True)
    play(memory, 0, 100)
    stored = memory.memory_table
    seen = [step for i in stored.identities() for step in stored.episode(i)["obs"][:-1, 0]]
    assert seen == list(range(100 - len(seen), 100))
    assert maxlen * 3 // 4 <= stored.size() <= maxlen


def test_episode_that_is_partly_stored_goes_on_after_a_resume():
    memory = proxy(minimum_length_threshold=3)
    play(memory, 2, 75, ending=None)
    other = proxy(minimum_length_threshold=3)
    other.load_state_dict(state_through_disk(memory))
    for each in (memory, other):
        each.add({2: observation(2, 75, TERMINAL)}, {})
    assert other.counters() == memory.counters()
    assert other.memory_table.identities() == memory.memory_table.identities()
    for identity in memory.memory_table.identities():
        mine, theirs = (each.memory_table.episode(identity) for each in (memory, other))
        assert all(np.array_equal(mine[key], theirs[key]) for key in mine)


def state_through_disk(memory):
    return deserialise(serialise(memory.state_dict()), max_bytes=1 << 24)


@pytest.mark.parametrize("spoil", ["open", "counters"])
def test_state_that_lacks_a_part_is_refused_and_changes_nothing(spoil):
    memory = proxy()
    play(memory, 1, 2, ending=None)
    state = memory.state_dict()
    del state[spoil]
    other = proxy()
    with pytest.raises(CheckpointError, match="expected a complete state of a memory proxy"):
        other.load_state_dict(state)
    assert other.is_initial(1)


def test_refused_episodes_do_not_take_the_others_of_their_step_along():
    memory = MemoryTableProxy(table(maxlen=4), use_terminal=True, whole_episodes=True)
    for agent, steps in ((0, 5), (1, 3), (2, 6)):
        play(memory, agent, steps, ending=None)
    ends = {agent: observation(agent, steps, TERMINAL) for agent, steps in ((0, 5), (1, 3), (2, 6))}
    with pytest.raises(InputError, match=r"episode 0: .* got 5") as caught:
        memory.add(ends, {})
    assert "got 6" in caught.value.__notes__[0]
    assert memory.memory_table.episode(1)["obs"][:, 0].tolist() == [100.0, 101.0, 102.0, 103.0]
    assert memory.counters()["episodes_added"] == 1
    assert all(memory.is_initial(agent) for agent in ends)
