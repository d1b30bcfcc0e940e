"""The ego's seat as a batch: partners inside, others every episode, all repeatable."""

from typing import Any

import numpy as np
import pytest

from cadenza.aht.config import PartnerConfig
from cadenza.benchmark.stream_tasks import EgoVectorEnv, make_ego_worlds
from cadenza.benchmark.tasks import CROSSING, isolated_tasks, register_task
from cadenza.core.errors import ConfigurationError, InputError, NotReadyError
from tests.stream_replays import play_again

PARTNERS = {
    "crossing": [
        PartnerConfig(class_name="crossing_goal_seeker", extra={"speed_spread": "0.5"}),
        PartnerConfig(class_name="crossing_wanderer"),
    ],
    "mpe_cooperative_push": [
        PartnerConfig(extra={"target_xy": "0.5,0.5"}),
        PartnerConfig(extra={"target_xy": "-0.5,0.0"}),
    ],
}
LENGTHS = {"crossing": 200, "mpe_cooperative_push": 50}


def worlds(task="crossing", num_envs=3, partners=None, root_seed=7, **options) -> EgoVectorEnv:
    chosen = PARTNERS[task] if partners is None else partners
    return make_ego_worlds(
        num_envs,
        task=task,
        partners=[partner.model_dump(mode="json") for partner in chosen],
        episode_length=LENGTHS[task],
        root_seed=root_seed,
        options=options,
    )


def play(env: EgoVectorEnv, seed: int, steps: int) -> list[dict[str, Any]]:
    """Play random actions; return finished episodes with their states, actions and ends."""
    rng = np.random.default_rng(3)
    observation, _ = env.reset(seed=seed)
    numbers = [seed + row for row in range(env.num_envs)]
    now = [
        {"seed": n, "states": [s], "actions": []} for n, s in zip(numbers, observation, strict=True)
    ]
    done: list[dict[str, Any]] = []
    for _ in range(steps):
        actions = rng.uniform(-2.0, 2.0, env.action_space.shape).astype(np.float32)
        observation, _, terminated, truncated, info = env.step(actions)
        for row in range(env.num_envs):
            ended = terminated[row] or truncated[row]
            seen = info["final_obs"][row] if ended else observation[row]
            now[row]["states"].append(seen)
            now[row]["actions"].append(actions[row])
            if ended:
                success = info["success"][row] if "success" in info else None
                done.append(now[row] | {"terminated": terminated[row], "success": success})
                number = now[row]["seed"] + env.num_envs
                now[row] = {"seed": number, "states": [observation[row]], "actions": []}
    return done


@pytest.mark.parametrize("task", list(PARTNERS))
def test_every_episode_is_one_of_the_scalar_task_with_one_of_the_partners(task):
    episodes = play(worlds(task), seed=1000, steps=3 * LENGTHS[task])
    assert len(episodes) >= 8
    found = set()
    for episode in episodes:
        states, actions = np.array(episode["states"]), np.array(episode["actions"])
        matches = []
        for number, partner in enumerate(PARTNERS[task]):
            again, _, terminated, success = play_again(
                task, partner, root_seed=7, seed=episode["seed"], actions=actions
            )
            if np.array_equal(again, states):
                matches.append(number)
                assert (terminated, success) == (episode["terminated"], episode["success"])
        assert len(matches) == 1
        found.update(matches)
    assert found == {0, 1}


def test_reset_without_seed_goes_on_with_other_episodes():
    env = worlds()
    first, _ = env.reset(seed=5)
    second, _ = env.reset()
    fresh = worlds()
    third, _ = fresh.reset(seed=[8, 9, 10])  # episodes 5 + 3, 6 + 3, 7 + 3
    assert not np.array_equal(first, second)
    assert np.array_equal(second, third)
    assert env.partner_ids == fresh.partner_ids
    for _ in range(5):
        zeros = np.zeros((3, 2), np.float32)
        assert np.array_equal(env.step(zeros)[0], fresh.step(zeros)[0])


def test_partner_ids_tell_who_plays():
    env = worlds(num_envs=40)
    env.reset(seed=0)
    assert len(set(env.partner_ids)) == 2
    alone = worlds(num_envs=2, partners=PARTNERS["crossing"][:1])
    alone.reset(seed=0)
    assert len(set(alone.partner_ids)) == 1


def test_every_further_robot_has_a_partner_of_its_own():
    env = worlds(num_envs=20, num_robots=3)
    observation, _ = env.reset(seed=0)
    assert observation.shape == (20, 14)  # 6 about the ego, 4 about each of two others
    assert len(set(env.partner_ids)) == 4  # two kinds in two seats
    moved = env.step(np.zeros((20, 2), np.float32))[0] - observation
    assert (np.abs(moved[:, [8, 12]]) > 0).any(axis=0).all()  # both others gain speed


def test_actions_of_partners_stay_within_their_bounds():
    env = worlds(
        "mpe_cooperative_push", partners=[PartnerConfig(extra={"max_speed": "9", "gain": "99"})]
    )
    observation, _ = env.reset(seed=0)
    after = env.step(np.zeros((3, 2), np.float32))[0]
    assert np.abs(after[:, 8:10] - observation[:, 8:10]).max() <= 0.1 + 1e-6  # 1 per s, 0.1 s


def test_stepping_before_a_reset_is_refused():
    with pytest.raises(NotReadyError, match=r"EgoVectorEnv.step: .* call reset\(\)"):
        worlds().step(np.zeros((3, 2), np.float32))


def test_actions_of_another_shape_are_refused():
    env = worlds()
    env.reset(seed=0)
    with pytest.raises(InputError, match=r"ego"):
        env.step(np.zeros((3, 3), np.float32))


def test_no_partner_is_refused():
    with pytest.raises(ConfigurationError, match=r"EgoVectorEnv: expected at least one partner"):
        worlds(partners=[])


def test_only_an_open_seat_takes_a_partner_and_it_needs_one():
    with pytest.raises(ConfigurationError, match=r"the partner's seat open .*, got partners in it"):
        worlds().seat_partner(None)
    with pytest.raises(NotReadyError, match=r"EgoVectorEnv: expected seat_partner\(\) first"):
        EgoVectorEnv(worlds().env, None).reset(seed=0)
    with pytest.raises(ConfigurationError, match=r"open seat: expected two robots, got 3 of them"):
        EgoVectorEnv(worlds(num_robots=3).env, None)


def scalar_only(request):
    """Ignore ``request.batched``."""
    from cadenza.envs.crossing import CrossingEnv

    return CrossingEnv(agent_uids=request.seats)


def late_resets(request):
    """Reset in the step after."""
    from cadenza.envs.crossing import VectorCrossingEnv

    return VectorCrossingEnv(request.num_envs, autoreset="next_step")


@pytest.mark.parametrize("factory", ["scalar_only", "late_resets"])
def test_batches_that_cannot_be_streamed_are_refused(factory):
    with isolated_tasks():
        place = f"{__name__}:{factory}"
        register_task(CROSSING.model_copy(update={"task_id": "odd", "env_factory": place}))
        with pytest.raises(ConfigurationError, match=r"task 'odd': expected .* batch of 2"):
            make_ego_worlds(2, task="odd", partners=[{}], episode_length=9, root_seed=0, options={})
