"""Dumps of the older tool."""

import pickle

import numpy as np
import pytest

from cadenza.core.errors import ConfigurationError, IntegrityError
from cadenza.learn.memory.column import Column
from cadenza.learn.memory.loading import fill_table_from_legacy_file
from cadenza.learn.memory.table import ArrayMemoryTable

#: Runs of 12, 5 (too short) and 10 steps, and 3 steps after the last end.
STEPS = 30
ENDS = (11, 16, 26)


def table(*names):
    columns = {
        "obs": Column("obs", (3,), np.float32),
        "actions": Column("actions", (2,), np.float32),
        "rewards": Column("rewards", (1,), np.float32),
    }
    return ArrayMemoryTable(columns=[columns[n] for n in names], maxlen=100, length_key=names[0])


def dump(path, **changes):
    steps = np.arange(STEPS, dtype=np.float32)
    dones = np.zeros(STEPS, bool)
    dones[list(ENDS)] = True
    data = {
        "dones": dones.reshape(5, 6, 1),
        "actions": np.stack([steps, -steps], axis=1).reshape(5, 6, 1, 2),
        "rewards": (10 * steps).reshape(5, 6, 1),
        "obs": np.repeat(steps, 3).reshape(5, 6, 1, 3),
        "next_obs": np.repeat(steps + 0.5, 3).reshape(5, 6, 1, 3),
    } | changes
    path.write_bytes(pickle.dumps({k: v for k, v in data.items() if v is not None}))
    return str(path)


def test_actions_and_rewards_of_long_runs_are_added(tmp_path):
    memory = table("actions", "rewards")
    path = dump(tmp_path / "old.pickle")
    fill_table_from_legacy_file(
        memory, path, read_actions=True, read_rewards=True, allow_pickle=True
    )
    assert memory.identities() == [-1, -2]
    assert memory.size() == 12 + 10
    first, second = memory.episode(-1), memory.episode(-2)
    assert first["actions"].tolist() == [[s, -s] for s in range(12)]
    assert second["rewards"].tolist() == [[10.0 * s] for s in range(17, 27)]


def test_observations_get_the_state_after_the_last_step(tmp_path):
    memory = ArrayMemoryTable(
        columns=[Column("actions", (2,), np.float32), Column("obs", (3,), np.float32)], maxlen=100
    )
    path = dump(tmp_path / "old.pickle")
    fill_table_from_legacy_file(memory, path, read_actions=True, read_obs=True, allow_pickle=True)
    observations = memory.episode(-1)["obs"]
    assert observations[:, 0].tolist() == [*range(12), 11.5]
    memory.sample(10, 3)


def test_extension_is_added_and_ids_go_on_below_those_in_the_table(tmp_path):
    memory = table("rewards")
    dump(tmp_path / "old.pickle")
    for _ in range(2):
        fill_table_from_legacy_file(
            memory, str(tmp_path / "old"), read_rewards=True, allow_pickle=True
        )
    assert memory.identities() == [-1, -2, -3, -4]


def test_pickles_must_be_allowed(tmp_path):
    with pytest.raises(ConfigurationError, match="expected allow_pickle=True for a file"):
        fill_table_from_legacy_file(table("rewards"), dump(tmp_path / "old.pickle"))


def test_missing_array_is_a_key_error(tmp_path):
    path = dump(tmp_path / "old.pickle", next_obs=None)
    with pytest.raises(KeyError, match=r"got none called \['next_obs'\]"):
        fill_table_from_legacy_file(table("rewards"), path, allow_pickle=True)


@pytest.mark.parametrize(
    "changes", [{"rewards": np.zeros((5, 6, 2))[:, :, :1][:4]}, {"dones": np.zeros((0, 1, 1))}]
)
def test_arrays_of_other_lengths_are_refused(tmp_path, changes):
    path = dump(tmp_path / "old.pickle", **changes)
    with pytest.raises(IntegrityError, match="expected a multiple of the"):
        fill_table_from_legacy_file(table("rewards"), path, allow_pickle=True)
