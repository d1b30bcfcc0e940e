"""The lock-step memory: which transitions it holds, and how their ends are marked."""

import itertools

import numpy as np
import pytest

from cadenza.core.errors import CheckpointError, InputError
from cadenza.core.payloads import deserialise, serialise
from cadenza.learn.memory.builder import TransitionMemory


def memory(num_envs=1, **changes):
    values = {"observation_dim": 1, "action_dim": 1, "max_transitions": 100, "seed": 0}
    return TransitionMemory(num_envs=num_envs, **{**values, **changes})


def play(memory, steps, *, start=0, terminated=False, boundary=True):
    """One environment: observation t, action 10 t, reward 100 t; the last step ends it."""
    for t in range(start, start + steps):
        last = boundary and t == start + steps - 1
        memory.add(
            np.array([[t]]),
            np.array([[10 * t]]),
            np.array([100.0 * t]),
            terminated=np.array([last and terminated]),
            boundaries=np.array([last]),
            next_observations=np.array([[t + 1]]),
        )


@pytest.mark.parametrize(("terminated", "mask"), [(True, 0.0), (False, 1.0)])
def test_rows_belong_together_and_only_final_ends_are_masked(terminated, mask):
    store = memory()
    play(store, 4, terminated=terminated)
    assert store.size() == 4
    batch = store.sample(200)
    steps = batch["observation"]["obs"][:, 0]
    assert set(steps.tolist()) == {0.0, 1.0, 2.0, 3.0}
    assert (batch["actions"][:, 0] == 10 * steps).all()
    assert (batch["rewards"][:, 0] == 100 * steps).all()
    assert (batch["next_observation"]["obs"][:, 0] == steps + 1).all()
    ends = steps == 3
    assert (batch["masks"][ends] == mask).all()
    assert (batch["masks"][~ends] == 1.0).all()


@pytest.mark.parametrize("capacity", [50, 1000])
def test_running_episodes_are_sampled_but_for_their_last_steps(capacity):
    store = memory(max_transitions=capacity)
    play(store, 3, boundary=False)
    assert store.size() == 0
    play(store, 97, start=3, boundary=False)
    batch = store.sample(500)
    steps = batch["observation"]["obs"][:, 0]
    assert (batch["next_observation"]["obs"][:, 0] == steps + 1).all()
    assert (batch["masks"] == 1.0).all()
    assert steps.max() >= 95.0
    play(store, 1, start=100, terminated=True)
    assert store.size() == min(capacity, 101) or capacity - 6 <= store.size() <= capacity


def test_environments_keep_episodes_of_their_own():
    store = memory(num_envs=2)
    for t in range(2):
        store.add(
            np.array([[t], [t + 50]]),
            np.zeros((2, 1)),
            np.zeros(2),
            terminated=np.array([False, False]),
            boundaries=np.array([False, t == 1]),
            next_observations=np.array([[t + 1], [t + 51]]),
        )
    assert store.size() == 2
    assert store.sample(20)["observation"]["obs"].min() == 50.0


@pytest.mark.parametrize(
    ("spoilt", "value"),
    [
        *itertools.product((0, 1, 2, "next_observations"), (np.nan, -np.inf, 1e300, "shape")),
        ("terminated", "shape"),
        ("boundaries", "shape"),
    ],
)
def test_bad_numbers_of_one_environment_are_refused_before_any_is_taken(spoilt, value):
    store, steps = memory(num_envs=2), 0
    while store.size() == 0 or steps % 12 != 5:  # in the midst of a part, with some parts stored
        steps += 1
        play_two(store, steps)
    before = serialise(store.state_dict())
    with pytest.raises(
        InputError, match=r"TransitionMemory\.add: (obs|act|rew|next_obs|term|bound)"
    ):
        play_two(store, steps + 1, spoilt, value)
    assert serialise(store.state_dict()) == before


def play_two(store, step, spoilt=None, value=0.0):
    """One running step of two environments; ``value`` spoils an array of the second one."""
    arrays = [np.full((2, 1), float(step)), np.full((2, 1), 0.5), np.zeros(2)]
    ends = np.array([step % 7 == 0, False])
    rest = {
        "next_observations": np.full((2, 1), step + 1.0),
        "terminated": ends,
        "boundaries": ends.copy(),
    }
    if spoilt is not None:
        where = rest if isinstance(spoilt, str) else arrays
        if value == "shape":
            where[spoilt] = np.zeros((2, 3))
        else:
            where[spoilt][1] = value
    store.add(*arrays, **rest)


def test_stored_memory_goes_on_alike():
    one, other = memory(), memory()
    play(one, 3)
    play(one, 2, start=7, boundary=False)
    other.load_state_dict(deserialise(serialise(one.state_dict()), max_bytes=10**7))
    for store in (one, other):
        play(store, 1, start=9)
    first, second = one.sample(50), other.sample(50)
    assert (first["observation"]["obs"] == second["observation"]["obs"]).all()
    assert one.size() == other.size() == 6


def test_dropped_episodes_never_arrive():
    store = memory()
    play(store, 2, boundary=False)
    store.drop_open_episodes()
    play(store, 1)
    assert store.size() == 1


def test_wrong_rows_and_states_are_refused():
    store = memory(num_envs=2)
    with pytest.raises(InputError, match=r"observations: expected shape \(2, 1\), got \(1, 1\)"):
        store.add(
            np.zeros((1, 1)),
            np.zeros((2, 1)),
            np.zeros(2),
            terminated=np.zeros(2, bool),
            boundaries=np.zeros(2, bool),
            next_observations=np.zeros((2, 1)),
        )
    with pytest.raises(CheckpointError, match="expected a complete state"):
        store.load_state_dict({})
    with pytest.raises(CheckpointError, match=r"the episodes of 2 environments, .* got 1"):
        store.load_state_dict(memory().state_dict())


def test_saved_running_episodes_have_their_layout_and_fractions_of_choices_are_refused():
    store = memory(action_dtype=np.int64)
    play(store, 2, boundary=False)
    (running,) = store.state_dict()["open"]
    assert [value["array"].tolist() for value in running["obs"]] == [[0.0], [1.0]]
    assert [value["array"].tolist() for value in running["actions"]] == [[0], [10]]
    assert running["rewards"] == [{"plain": 0.0}, {"plain": 100.0}]
    with pytest.raises(InputError, match=r"'actions'.*whole numbers"):
        store.add(
            np.zeros((1, 1)),
            np.full((1, 1), 0.5),
            np.zeros(1),
            terminated=np.array([False]),
            boundaries=np.array([False]),
            next_observations=np.zeros((1, 1)),
        )
    assert len(store.state_dict()["open"][0]["rewards"]) == 2
