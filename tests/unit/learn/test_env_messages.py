"""What is no environment, or answers what no environment may, is refused in a sentence of ours."""

import re
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

import cadenza
from cadenza.core.errors import CadenzaError
from cadenza.envs import VectorMPECooperativePushEnv
from cadenza.learn import Callback

BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)
ZEROS = np.zeros(2, np.float32)
GYM_21 = 'gymnasium.make("shimmy:GymV21Environment-v0", env=...)'


class Answering(gymnasium.Env):
    """Answers what it was told to."""

    action_space = spaces.Discrete(2)

    def __init__(self, space=BOX, first=(ZEROS, {}), then=(ZEROS, 0.0, False, False, {})):
        self.observation_space, self.first, self.then = space, first, then

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.first

    def step(self, action):
        return self.then


class OldGym:
    """An environment of the package gym, as it was before its version 0.26."""

    observation_space, action_space = BOX, spaces.Discrete(2)

    def seed(self, seed=None):
        return [seed]

    def reset(self):
        return ZEROS

    def step(self, action):
        return ZEROS, 0.0, False, {}


class Unseeded(Answering):
    """Takes no seed."""

    def reset(self):
        return ZEROS, {}


def learned(env, **settings):
    cadenza.DQN(env, warmup_steps=2, **settings).learn(8, progress=False)


def refusal(call):
    with pytest.raises(CadenzaError) as caught:
        call()
    return str(caught.value)


def stepped(seen=ZEROS, reward=0.0, ended=False, cut=False, info=None):
    return {"then": (seen, reward, ended, cut, {} if info is None else info)}


PAIR = spaces.Dict(x=BOX, y=spaces.Discrete(3))
ANSWERS = [
    ({"first": ZEROS}, r"Answering.reset to return 2 values, \(observation, info\), got 1: array"),
    ({"first": (ZEROS, None)}, r"reset to return 2 values.* the info a dict"),
    ({"then": (ZEROS, 0.0, False, {})}, r"Answering.step to return 5 values.*, got 4: .*GymV21"),
    (stepped(info="text"), "step to return 5 values"),
    (stepped(reward="1.0"), r"reward to be a plain number, got '1.0'; return float\(reward\)"),
    (stepped(reward=None), r"reward to be a plain number, got None"),
    (stepped(reward=np.zeros(1)), r"reward to be a plain number, got the shape \(1,\)"),
    (stepped(reward=float("nan")), "Answering: expected a finite reward, got nan"),
    (stepped(ended="False"), "Answering.step: expected truth values in terminated, got 'False'"),
    (stepped(cut={"TimeLimit": True}), "expected truth values in truncated"),
    (stepped(ended=np.zeros(2, bool)), r"terminated to be a plain number, got the shape \(2,\)"),
    (stepped(seen=np.zeros(3)), r"observation in Box.*\(2,\).*, got array.* of shape \(3,\)"),
    (stepped(seen="ab"), r"observation in Box\(-1.0, 1.0, \(2,\), float32\), got 'ab'"),
    (
        {"space": PAIR, "first": ({"x": ZEROS}, {})},
        r"observation\['y'\] in Discrete\(3\), got None",
    ),
    ({"space": PAIR, "first": ({"x": ZEROS, "y": 7}, {})}, r"\['y'\] in Discrete\(3\), got 7"),
]


@pytest.mark.parametrize(("answers", "told"), ANSWERS)
def test_wrong_answers_are_named_wherever_the_environment_came_in(answers, told):
    make = partial(Answering, **answers)
    ready = SyncVectorEnv([make] * 2)
    agent = cadenza.DQN(partial(Answering, answers.get("space", BOX)))
    doors = [lambda: learned(make), lambda: learned(make()), lambda: learned(ready)]
    for door in [*doors, lambda: agent.evaluate(1, env=make(), max_episode_steps=5)]:
        message = refusal(door)
        assert re.search(told, message), message


def test_integers_zeros_and_lists_are_answers():
    learned(partial(Answering, then=[[0, 0], np.float64(1), 0, np.array(False), {}]))


@pytest.mark.parametrize(
    ("env", "told"),
    [
        (OldGym, GYM_21),
        (OldGym(), GYM_21),
        (Unseeded, "Unseeded.reset to take seed=..., got"),
        (lambda: Answering, "pass the environment itself, not what makes it"),
        (lambda count: Answering(), "a function without arguments that makes one, got"),
        ([Answering, Answering], "pass a function that makes one of its environments, and num_en"),
        ("CartPol-v1", "got 'CartPol-v1': Environment `CartPol` doesn't exist"),
        (partial(Answering, None), "Answering.observation_space to be a space of gymnasium.spaces"),
        (partial(Answering, spaces.Dict()), "none empty, got Dict()"),
        (partial(Answering, spaces.Text(3)), "gymnasium.wrappers.TransformObservation"),
    ],
)
def test_what_is_no_environment_is_refused_with_what_to_do(env, told):
    assert told in refusal(lambda: learned(env))


def test_environments_of_other_libraries_are_refused_with_what_to_do():
    vec_env = pytest.importorskip("stable_baselines3.common.vec_env")
    mpe2 = pytest.importorskip("mpe2.simple_spread_v3")
    parallel, ready = mpe2.parallel_env(), vec_env.DummyVecEnv([Answering])
    for door in (learned, cadenza.guard, lambda env: cadenza.DQN(Answering).evaluate(1, env=env)):
        assert "task='pettingzoo:module:env'" in refusal(lambda door=door: door(parallel))
        assert "pass a function that makes one of its" in refusal(lambda door=door: door(ready))
        assert GYM_21 in refusal(lambda door=door: door(OldGym()))
    assert "learns with PPO or SAC" in refusal(lambda: cadenza.MAPPO(Answering()))
    assert "whose agents act in turns" in refusal(lambda: cadenza.MAPPO(mpe2.env()))


def test_vector_environments_are_refused_for_what_they_say():
    class Pairs(Answering):
        def __init__(self):
            super().__init__(PAIR, ({"x": ZEROS, "y": 0}, {}))

    same_step = SyncVectorEnv([Pairs] * 2, autoreset_mode="SameStep")
    assert "use autoreset_mode=NEXT_STEP" in refusal(lambda: cadenza.DQN(same_step))
    silent = SyncVectorEnv([Answering] * 2)
    silent.metadata = None
    assert "metadata['autoreset_mode'] to be one of" in refusal(lambda: cadenza.PPO(silent))


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (
            lambda seen, *others: (None, *others),
            r"observation\['agent'\]\['ego'\]\['state'\] in Box",
        ),
        (lambda seen, reward, *others: (seen, {"ego": reward}, *others), "one number for each env"),
        (lambda *values: values[:4], "step to return 5 values"),
    ],
)
def test_teams_name_what_their_environments_answer(answer, told):
    class Batch(VectorMPECooperativePushEnv):
        def step(self, actions):
            return answer(*super().step(actions))

    team = cadenza.MAPPO(lambda n: Batch(n, root_seed=0), num_envs=2, rollout_length=8)
    with pytest.raises(CadenzaError, match=told):
        team.learn(16, progress=False)


@pytest.mark.parametrize("given", [lambda: None, None, Callback, [print]])
def test_a_callback_is_an_instance_of_a_class_with_methods(given):
    with pytest.raises(CadenzaError, match=r"derive a class from Callback and pass an instance"):
        cadenza.DQN(Answering).learn(4, callbacks=given, progress=False)


def test_second_agent_on_a_ready_vector_environment_adds_no_layer():
    ready = SyncVectorEnv([Answering] * 2)
    cadenza.DQN(ready)
    checked = list(ready.envs)
    cadenza.DQN(ready)
    assert all(one is other for one, other in zip(ready.envs, checked, strict=True))
    assert all(type(one.env) is Answering for one in ready.envs)


def test_ready_environments_keep_their_attributes():
    ready = SyncVectorEnv([Answering] * 2)
    cadenza.DQN(ready)
    assert ready.envs[0].then[1] == 0.0
