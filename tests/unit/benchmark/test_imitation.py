"""Experts of the registries in the ego's seat, and how their pupils are judged."""

import numpy as np
import pytest

import cadenza
from cadenza.benchmark.imitation import (
    Successes,
    imitate,
    imitation_batch,
    imitation_env,
    success_by_partner,
)
from cadenza.benchmark.policies import ego_seat, goal_pull, load_policy, policy_weights_sha256
from cadenza.benchmark.tasks import get_task, isolated_tasks, register_task
from cadenza.core.errors import ConfigurationError, NotReadyError, UnknownNameError
from cadenza.partners import PartnerSpec
from tests.unit.learn.test_api import Watch, assert_same
from tests.zoo_samples import made

PARTNERS = [
    "crossing_wanderer",
    {"class_name": "crossing_goal_seeker", "extra": {"max_speed": "2"}},
]


def clipped_pull(state):
    return np.clip(goal_pull(state), -2.0, 2.0).astype(np.float32)


def sought(state):
    """Return 2.5 (g min(1 / |g|, 0.6) − v), shortened to 0.5 m/s² per component."""
    way = state[4:6]
    pull = 2.5 * (way * min(1.0 / np.hypot(*way), 0.6) - state[2:4])
    return pull * min(1.0, 0.5 / np.abs(pull).max())


@pytest.mark.parametrize(
    ("expert", "wanted"),
    [
        ("goal_pd", clipped_pull),  # a scripted ego
        ("zero", lambda state: np.zeros(2)),  # an ego policy
        ("crossing_goal_seeker", sought),  # a partner, which would drive the ego's seat
    ],
)
def test_expert_of_any_registry_says_what_it_would_do_now(expert, wanted):
    env = imitation_env("crossing", expert=expert)()
    state, _ = env.reset(seed=4)
    for _ in range(5):
        np.testing.assert_allclose(env.expert_action(), wanted(state), atol=1e-5)
        state, *_ = env.step(np.array([0.3, -0.2], np.float32))


def test_every_episode_draws_one_of_the_partners_by_its_seed():
    env = imitation_env("crossing", expert=None, partners=PARTNERS)()
    assert env.names == ("crossing_wanderer", "crossing_goal_seeker(max_speed=2)")

    def drawn(seed):
        env.reset(seed=seed)
        return env.drawn

    numbers = [drawn(seed) for seed in range(60)]
    assert 0.3 < np.mean(numbers) < 0.7
    assert [drawn(seed) for seed in (7, 3, 41)] == [numbers[seed] for seed in (7, 3, 41)]
    with pytest.raises(NotReadyError, match="expected an expert"):
        env.expert_action()


def test_pupil_goes_on_from_a_file_bit_for_bit_with_experts_and_partners(tmp_path):
    make = imitation_env("crossing", expert="crossing_wanderer", partners=PARTNERS)
    small = {"num_envs": 3, "round_length": 30, "updates": 10, "hidden_sizes": (16,)}
    whole = cadenza.DAgger(make, seed=5, **small)
    write = Watch(14, lambda: whole.save(tmp_path / "half"))
    whole.learn(270, callbacks=[write], progress=False)
    half = cadenza.DAgger.load(tmp_path / "half", make)
    assert (half.steps, half.updates) == (180, 14)
    assert_same(half.learn(90, progress=False), whole)


def test_batch_asks_each_expert_about_its_own_episode():
    batch = imitation_batch("crossing", 4, expert="crossing_wanderer", partners=PARTNERS)
    scalar = imitation_env("crossing", expert="crossing_wanderer")()
    states, _ = batch.reset(seed=20)
    for row in range(4):
        state, _ = scalar.reset(seed=20 + row)
        np.testing.assert_array_equal(states[row], state)
        np.testing.assert_array_equal(batch.expert_action()[row], scalar.expert_action())
    agent = cadenza.DAgger(batch, round_length=250, updates=1).learn(1_000, progress=False)
    stored = agent.demonstrations
    assert len(stored) == 1_000  # over the ends of episodes, at 200 steps or before
    assert not agent.envs.can_make


def test_reference_of_co_carry_is_an_expert_in_both_kinds_of_environments():
    pytest.importorskip("mjbatch")
    options = {"expert": "cocarry_reference", "partners": ["cocarry_follower"]}
    batch = imitation_batch("cocarry_mj", 2, **options)
    scalar = imitation_env("cocarry_mj", **options)()
    states, _ = batch.reset(seed=8)
    state, _ = scalar.reset(seed=9)
    for _ in range(30):  # the patience of the reference is over after 10 ticks
        np.testing.assert_array_equal(states[1], state)
        np.testing.assert_array_equal(batch.expert_action()[1], scalar.expert_action())
        states, *_ = batch.step(batch.expert_action())
        state, *_ = scalar.step(scalar.expert_action())


def test_success_is_counted_beside_each_partner():
    options = {"partners": PARTNERS, "episodes": 6}
    judged = success_by_partner("goal_pd", "crossing", **options)
    names = [each.partner for each in judged.values()]
    assert names == ["crossing_wanderer", "crossing_goal_seeker(max_speed=2)"]
    assert PartnerSpec("crossing_wanderer", 0).content_id == next(iter(judged))
    with pytest.raises(ConfigurationError, match="got crossing_wanderer twice"):
        success_by_partner("goal_pd", "crossing", ["crossing_wanderer"] * 2, episodes=1)
    assert success_by_partner(clipped_pull, "crossing", **options) == judged
    idle = success_by_partner("zero", "crossing", **options)
    assert all(each.count == 0 for each in idle.values())
    env = imitation_env("crossing", expert=None, partners=PARTNERS[:1], root_seed=1_000_000)()
    for seed, won in enumerate(next(iter(judged.values())).won):
        state, info = env.reset(seed=seed)
        done = False
        while not done:
            state, _, terminated, truncated, info = env.step(clipped_pull(state))
            done = terminated or truncated
        assert info["success"] == won


def test_every_member_of_a_zoo_has_its_own_row(tmp_path):
    zoo = made(tmp_path / "zoo", "fcp", task="crossing", episode_length=10)
    members = [
        {
            "class_name": "zoo_member",
            "weights_uri": f"local://zoo/members/{member.name}.pt",
            "extra": {"root": str(tmp_path)},
        }
        for member in zoo.members
    ]
    judged = success_by_partner("zero", "crossing", members, episodes=2, episode_length=10)
    assert len(judged) == len(members) == 6
    for each, member in zip(judged.values(), zoo.members, strict=True):
        assert f"zoo/members/{member.name}.pt" in each.partner


def test_successes_are_printed_and_compared_with_exact_intervals():
    # Clopper and Pearson at 10 of 10: the lower end is 0.025^(1/10).
    ten, other = Successes((True,) * 10), Successes((True,) * 4 + (False,) * 6)
    assert str(ten) == f"10 of 10 [{0.025**0.1:.2f}, 1.00]"
    difference, low, high = ten.minus(other)
    assert difference == 0.6
    assert 0.0 < low < 0.6 < high < 1.0
    assert other.minus(ten) == (-0.6, -high, -low)
    assert (ten + other).count == 14


SMALL = {"num_envs": 3, "round_length": 20, "updates": 5, "hidden_sizes": (16,), "progress": False}


def test_pupil_of_a_folder_plays_in_every_evaluation(tmp_path):
    done = imitate("crossing", expert="swerve", out=tmp_path, steps=120, episodes=2, **SMALL)
    assert (done.agent.steps, done.resumed_from) == (120, None)
    assert [len(each.won) for each in done.judged.values()] == [2]
    assert policy_weights_sha256(
        "local://agent.policy.safetensors", artifacts_root=tmp_path, task="crossing"
    )
    env = imitation_env("crossing", expert=None)()
    state, _ = env.reset(seed=1)
    seat = ego_seat(env.multi_env, "ego")
    policy = load_policy("local://agent.policy.safetensors", seat=seat, artifacts_root=tmp_path)
    played = policy.act({"agent": {"ego": {"state": state}}})
    np.testing.assert_allclose(played, done.agent.predict(state), atol=1e-5)


def test_interrupted_imitation_ends_with_the_same_weights(tmp_path):
    scalar = get_task("crossing").model_copy(
        update={"task_id": "crossing_one_by_one", "supports_batches": False}
    )

    def run(folder, steps, **more):
        options = {"expert": "swerve", "episodes": 1, "partners": PARTNERS, **SMALL, **more}
        return imitate("crossing_one_by_one", out=tmp_path / folder, steps=steps, **options)

    with isolated_tasks():
        register_task(scalar)
        whole, half = run("whole", 180), run("halves", 60)
        with pytest.raises(ConfigurationError, match="got one that began before"):
            run("halves", 180)
        resumed = run("halves", 180, resume=True)
    assert (half.agent.steps, resumed.resumed_from) == (60, 60)
    assert_same(resumed.agent, whole.agent)
    assert resumed.policy.read_bytes() == whole.policy.read_bytes()
    assert resumed.judged == whole.judged


@pytest.mark.parametrize(
    ("task", "changes", "error", "told"),
    [
        ("crossing", {"expert": "swerv"}, UnknownNameError, "swerve"),
        ("crossing", {"partners": ["scripted_heuristic"]}, ConfigurationError, "plays task"),
        ("crossing", {"num_robots": 99}, ConfigurationError, "num_robots"),
        ("crosing", {}, UnknownNameError, "crossing"),
    ],
)
def test_wrong_names_are_refused_before_anything_is_learned(task, changes, error, told):
    with pytest.raises(error, match=told):
        imitation_env(task, **{"expert": "goal_pd", **changes})


def test_tasks_without_success_are_judged_by_their_return():
    with pytest.raises(ConfigurationError, match="success predicate"):
        success_by_partner("zero", "mpe_cooperative_push", ["scripted_heuristic"], episodes=1)
