"""Populations of policies that choose: the same code, Discrete actions."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from cadenza.benchmark.zoo.fcp import SelfPlay
from cadenza.benchmark.zoo.mep import EntropyPopulation
from cadenza.benchmark.zoo.pairs import PairEnv
from cadenza.core.contracts import ActionField, ObsField, TaskContract
from cadenza.core.errors import ConfigurationError
from cadenza.partners.zoo_member import MemberPolicies
from tests.zoo_samples import tiny

UIDS = ("ego", "partner")


class MatchingEnv:
    """Two robots are paid for the same choice out of 5, 6, 7; the partner sees one entry more."""

    def __init__(self):
        self.agent_uids, self.num_envs, self.seen = UIDS, 4, []
        self.task_contract = {
            uid: TaskContract(
                task_id="matching",
                robot_uid=uid,
                obs_spec=(ObsField("one", 2 + k),),
                action_spec=(ActionField("choice", 1, 5.0, 7.0),),
            )
            for k, uid in enumerate(UIDS)
        }
        self.single_action_space = {uid: gym.spaces.Discrete(3, start=5) for uid in UIDS}
        widths = {uid: gym.spaces.Box(-1.0, 1.0, (2 + k,)) for k, uid in enumerate(UIDS)}
        self.single_observation_space = {
            "agent": {uid: {"state": space} for uid, space in widths.items()}
        }

    def reset(self, *, seed):
        self._steps = 0
        return self._observation(), {}

    def step(self, actions):
        ego, partner = (actions[uid] for uid in UIDS)
        self.seen.append(ego)
        self._steps += 1
        ended = np.full(4, self._steps % 5 == 0)
        info = {"final_observation": self._observation()} if ended.any() else {}
        return self._observation(), (ego == partner)[:, 0] * 1.0, ended & False, ended, info

    def _observation(self):
        return {"agent": {uid: {"state": np.ones((4, 2 + k))} for k, uid in enumerate(UIDS)}}


@pytest.mark.parametrize("population", [SelfPlay, EntropyPopulation])
def test_choices_are_learned_from_and_become_plain_policies(population):
    env = MatchingEnv()
    pairs = PairEnv(env)
    trained = population(tiny(), pairs, ["job"])
    before = trained.member(0).ego.content_id
    for iteration in range(2):
        trained.iterate(iteration)
    assert {int(choice) for batch in env.seen for choice in batch[:, 0]} == {5, 6, 7}
    member = MemberPolicies.from_state_dict(trained.member(0).state_dict())
    assert member.ego.content_id != before
    assert (member.ego.observation_dim, member.partner.observation_dim) == (2, 3)
    assert [each.contract for each in member] == [env.task_contract[uid] for uid in UIDS]


def test_plain_policies_choose_as_the_stack_does():
    pairs = PairEnv(MatchingEnv())
    trained = SelfPlay(tiny(), pairs, ["job"])
    trained.iterate(0)
    trained.iterate(1)
    states = pairs.reset(0)
    players, member = trained.players, trained.member(0)
    chosen = players.learner.act(
        players.learner.scale(players.rows[:, 0], learn=False), noise=torch.zeros(1)
    ).reshape(2, 4)
    assert member.partner.act(states[1])[:, 0].tolist() == (chosen[1] + 5).tolist()


def test_task_with_three_robots_is_refused():
    env = MatchingEnv()
    env.agent_uids = (*UIDS, "third")
    with pytest.raises(ConfigurationError, match="two robots, got ego, partner, third"):
        PairEnv(env)
