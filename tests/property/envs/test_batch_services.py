"""Blocks of a batch play what batches of their own play, and copies go back to the byte."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cadenza.benchmark.stream_tasks import make_batch
from cadenza.core.errors import InputError, NotReadyError

#: Tasks with episodes so short that copies begin anew within a few steps.
TASKS = {
    "crossing": 9,
    "doorway": 7,
    "doorway_diffdrive": 7,
    "foraging": 6,
    "mpe_cooperative_push": 5,
    "cocarry_mj": 4,
    "handover_mj": 4,
}


def batch(task, count, *, stride=None):
    return make_batch(
        task, count, episode_length=TASKS[task], root_seed=3, options={}, stride=stride
    )


def drawn_actions(env, rng):
    """Return random actions of everybody, choices or numbers within the bounds."""
    return {
        uid: rng.integers(0, space.n, env.num_envs)
        if hasattr(space, "n")
        else rng.uniform(-1, 1, (env.num_envs, *space.shape))
        for uid, space in env.single_action_space.items()
    }


def states(env, seen, rows):
    return [seen["agent"][uid]["state"][rows] for uid in env.agent_uids]


def told(env, outcome, rows):
    """Return the bytes that a step tells of some copies."""
    seen, *numbers, info = outcome
    parts = [*states(env, seen, rows), *(values[rows] for values in numbers)]
    info = {**info, **info.get("final_info", {})}
    facts = sorted(set(info) - {"final_observation", "final_obs", "final_info"})
    parts += [info[name][rows] for name in facts if name[0] != "_"]
    if numbers[1][rows].any() or numbers[2][rows].any():
        over = (numbers[1] | numbers[2])[rows]
        parts += [state[over] for state in states(env, info["final_observation"], rows)]
    return [part.tobytes() for part in parts]


@pytest.mark.parametrize("task", TASKS)
def test_blocks_with_a_stride_play_what_batches_of_their_own_play(task):
    each, firsts = 2, (11, 400, 7)
    whole = batch(task, each * len(firsts), stride=each)
    parts = [batch(task, each) for _ in firsts]
    whole.reset(seed=[first + i for first in firsts for i in range(each)])
    for part, first in zip(parts, firsts, strict=True):
        part.reset(seed=first)
    rng = np.random.default_rng(0)
    for _ in range(2 * TASKS[task] + 2):
        acted = drawn_actions(whole, rng)
        together = whole.step(acted)
        for k, part in enumerate(parts):
            rows = slice(k * each, (k + 1) * each)
            alone = part.step({uid: values[rows] for uid, values in acted.items()})
            assert told(whole, together, rows) == told(part, alone, slice(None))


@pytest.mark.parametrize("task", TASKS)
@given(data=st.data(), before=st.integers(0, 12), after=st.integers(1, 8))
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
def test_restored_copies_repeat_the_first_run_to_the_byte(task, data, before, after):
    env = batch(task, 4)
    seen, _ = env.reset(seed=data.draw(st.integers(0, 2**40), label="seed"))
    rng = np.random.default_rng(1)
    for _ in range(before):
        seen, *_ = env.step(drawn_actions(env, rng))
    rows = data.draw(st.lists(st.sampled_from(range(4)), min_size=1, unique=True), label="rows")
    kept = env.snapshot(rows)
    acted = [drawn_actions(env, rng) for _ in range(after)]
    first = [told(env, env.step(one), rows) for one in acted]

    # Back to where they were, and to the places of others.
    places = data.draw(st.sampled_from([rows, rows[::-1]]), label="places")
    moved = [{uid: values.copy() for uid, values in one.items()} for one in acted]
    for one, other in zip(acted, moved, strict=True):
        for uid, values in one.items():
            other[uid][places] = values[rows]
    back = env.restore(places, kept)
    for now, then in zip(states(env, back, places), states(env, seen, rows), strict=True):
        assert now.tobytes() == then.tobytes()
    assert [told(env, env.step(one), places) for one in moved] == first


def test_snapshots_are_refused_before_a_reset_and_for_another_number_of_copies():
    env = batch("crossing", 3)
    with pytest.raises(NotReadyError, match="reset"):
        env.snapshot([0])
    env.reset(seed=0)
    with pytest.raises(InputError, match="2 rows"):
        env.restore([0, 1], env.snapshot([0]))
    with pytest.raises(InputError, match="stride"):
        batch("crossing", 3, stride=0)
