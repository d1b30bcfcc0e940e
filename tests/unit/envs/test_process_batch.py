"""Scalar tasks as batches by processes: their bytes, their errors, and nobody left behind."""

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from functools import partial

import numpy as np
import psutil
import pytest

from cadenza.benchmark.stream_tasks import make_batch
from cadenza.benchmark.tasks import EnvRequest, get_task
from cadenza.core.errors import InputError, NotReadyError, OnlineDataWorkerError
from cadenza.envs.inputs import ChamberEnvCompatibilityError
from cadenza.envs.process_batch import ProcessBatch

#: Its own length is 8 steps; agents tell whether they have succeeded.
NAME = "pettingzoo:tests.parallel_envs:Matching"


def maker(length=5, root=3, **options):
    return partial(
        get_task(NAME).make_env, EnvRequest(episode_length=length, root_seed=root, options=options)
    )


def uncopyable():
    env = maker()()
    env.watcher = threading.Lock()
    return env


def failing():
    env = maker()()

    def reset(**_):
        raise ValueError("no episode", threading.Lock())

    env.reset = reset
    return env


@pytest.fixture(scope="module")
def pair():
    """Five copies in two processes."""
    batch = ProcessBatch(maker(), 5, workers=2)
    yield batch
    batch.close()


def own_workers():
    """Return the processes of this one that step environments."""
    return {one.pid for one in multiprocessing.active_children() if one.name == "cadenza-env"}


def same(batch, row, single):
    """Return whether one copy shows what a scalar environment shows, to the byte."""
    return all(
        batch["agent"][uid]["state"][row].tobytes() == single["agent"][uid]["state"].tobytes()
        for uid in single["agent"]
    )


def played(batch, seeds, steps=13):
    """Return what every step of a batch tells, under equal actions."""
    rng = np.random.default_rng(7)
    told = [batch.reset(seed=seeds)[0]]
    for _ in range(steps):
        drawn = {uid: rng.integers(0, 3, (batch.num_envs, 1)) for uid in batch.agent_uids}
        told.append(batch.step(drawn))
    return told


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stride", [5, 2])
def test_copies_have_the_bytes_of_scalar_environments_across_resets(pair, workers, stride):
    batch = pair if workers else ProcessBatch(maker(), 5, workers=0)
    batch.stride = stride
    firsts = [40, 7, 12, 3, 100]
    begun, *steps = played(batch, firsts)
    singles, episodes = [maker()() for _ in firsts], [0] * 5
    rng = np.random.default_rng(7)
    seen = [env.reset(seed=first)[0] for env, first in zip(singles, firsts, strict=True)]
    assert all(same(begun, row, one) for row, one in enumerate(seen))
    for state, rewards, terminated, truncated, info in steps:
        drawn = {uid: rng.integers(0, 3, (5, 1)) for uid in batch.agent_uids}
        for row, env in enumerate(singles):
            one, reward, *ends, told = env.step({uid: rows[row] for uid, rows in drawn.items()})
            assert (rewards[row], terminated[row], truncated[row]) == (reward, *ends)
            assert info["success"][row] == told["success"]
            if any(ends):
                episodes[row] += 1
                assert same(info["final_observation"], row, one)
                one, _ = env.reset(seed=firsts[row] + episodes[row] * stride)
            assert same(state, row, one)
    assert sum(episodes) == 10


@pytest.mark.parametrize("workers", [0, 2])
def test_restored_copies_repeat_the_first_run_in_other_places_too(pair, workers):
    batch = pair if workers else ProcessBatch(maker(), 5, workers=0)
    batch.stride = 5
    batch.reset(seed=0)
    actions = {uid: np.ones((5, 1), dtype=np.int64) for uid in batch.agent_uids}
    for _ in range(3):
        batch.step(actions)
    kept = batch.snapshot([4, 0])
    first = [batch.step(actions) for _ in range(6)]
    for places in ([4, 0], [1, 3]):
        batch.restore(places, kept)
        for then in first:
            now = batch.step(actions)
            for here, there in zip(places, [4, 0], strict=True):
                assert now[1][here] == then[1][there]
                states = (told[0]["agent"]["ego"]["state"] for told in (now, then))
                assert next(states)[here].tobytes() == next(states)[there].tobytes()


def test_errors_of_copies_are_those_of_the_scalar_environment(pair):
    pair.reset(seed=0)
    good = {uid: np.ones((5, 1)) for uid in pair.agent_uids}
    for bad, match in (
        ({"ego": np.ones((5, 1))}, "partner"),
        ({**good, "partner": np.ones((4, 1))}, "one row for each of 5 copies"),
        ({**good, "partner": np.full((5, 1), 9.0)}, "whole number from 0 to 2"),
    ):
        with pytest.raises(InputError, match=match):
            pair.step(bad)
    with pytest.raises(NotReadyError, match="reset"):  # some copies moved, one did not
        pair.step(good)
    pair.reset(seed=0)
    assert pair.step(good)[1].shape == (5,)
    with pytest.raises(NotReadyError, match="one by one"):
        pair.reset_rows([0], [1], [2])


@pytest.mark.parametrize("workers", [0, 2])
def test_environment_that_cannot_be_copied_refuses_a_snapshot_and_plays_on(workers):
    batch = ProcessBatch(uncopyable, 2, workers=workers)
    batch.reset(seed=0)
    with pytest.raises(ChamberEnvCompatibilityError, match="can be copied"):
        batch.snapshot([0])
    assert batch.step({uid: np.ones((2, 1)) for uid in batch.agent_uids})[1].shape == (2,)
    batch.close()


def test_error_that_cannot_be_sent_is_told_and_the_worker_stays():
    batch = ProcessBatch(failing, 2, workers=2)
    for _ in range(2):
        with pytest.raises(OnlineDataWorkerError, match=r"ValueError: .*no episode"):
            batch.reset(seed=0)
    batch.close()


def test_lost_worker_is_told_and_a_forgotten_batch_leaves_no_process():
    before = own_workers()
    batch = ProcessBatch(maker(), 2, workers=2)
    workers = own_workers() - before
    batch.reset(seed=0)
    assert len(workers) == 2
    os.kill(min(workers), signal.SIGKILL)
    with pytest.raises(OnlineDataWorkerError, match="exit code -9"):
        batch.step({uid: np.ones((2, 1)) for uid in batch.agent_uids})
    del batch
    gc.collect()
    assert own_workers() == before


SCRIPT = """
import multiprocessing, sys
from functools import partial
from cadenza.benchmark.tasks import EnvRequest, get_task
from cadenza.envs.process_batch import ProcessBatch

if __name__ == "__main__":
    make = partial(get_task(sys.argv[1]).make_env, EnvRequest(episode_length=5, options={}))
    batch = ProcessBatch(make, 4, workers=2)
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    sys.stdin.read()
"""


def test_workers_end_with_a_killed_parent():
    command = [sys.executable, "-c", SCRIPT, NAME]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        workers = [psutil.Process(int(pid)) for pid in run.stdout.readline().split()]
        assert len(workers) >= 2
        run.kill()
        run.wait()
    assert psutil.wait_procs(workers, timeout=60)[1] == []


def test_task_without_arrays_is_a_batch_where_one_is_asked_for():
    batch = make_batch(NAME, 1, episode_length=5, root_seed=3, options={"leaves": 2}, stride=4)
    batch.reset(seed=6)
    alone = maker(leaves=2)()
    seen, _ = alone.reset(seed=6)
    np.testing.assert_array_equal(
        batch.snapshot([0])["state of ego"][0], seen["agent"]["ego"]["state"]
    )
    assert (batch.stride, batch.single_action_space["ego"]) == (4, alone.action_space["ego"])
