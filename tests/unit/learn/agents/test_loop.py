"""The loop of the agents: its moments, what callbacks can do at them, and how it ends."""

import pytest
import torch

import cadenza
from cadenza.core.device import single_torch_thread
from cadenza.learn import Callback, TrainingShutdownException
from cadenza.learn.agents.loop import AgentCallback
from tests.unit.learn.counting_envs import CountingEnv, TargetTeam
from tests.unit.learn.test_api import REPLAY, ROLLOUT, assert_same

TINY = {"hidden_sizes": (8,), "batch_size": 8}


class Moments(AgentCallback):
    """Notes what it is told of, and when."""

    def __init__(self):
        self.told = []

    def on_start(self, agent):
        self.told.append(("start", agent.steps))

    def on_step(self, agent, step):
        self.told.append(("step", agent.steps, step.rewards.tolist()))

    def on_batch(self, agent, batch):
        self.told.append(("batch", agent.updates))

    def on_update(self, agent, batch, figures):
        self.told.append(("update", agent.updates, "q_loss" in figures or "policy_loss" in figures))

    def on_evaluate(self, agent, result):
        self.told.append(("evaluate", agent.steps))

    def on_save(self, agent, path):
        self.told.append((path.name, agent.steps))

    def on_end(self, agent, error):
        self.told.append(("end", error))


def counting(**options):
    return lambda: CountingEnv(**options)


def test_moments_come_in_their_order(tmp_path):
    moments = Moments()
    agent = cadenza.PPO(counting(horizon=3), rollout_length=2, epochs=1, **TINY)
    options = {"evaluate_every": 4, "evaluation_episodes": 1, "folder": tmp_path}
    agent.learn(5, callbacks=moments, progress=False, **options)
    first = [("step", 1, [1.0]), ("step", 2, [2.0]), ("batch", 0), ("update", 1, True)]
    second = [("step", 3, [3.0]), ("step", 4, [1.0]), ("batch", 1)]
    judged = [("evaluate", 4), ("best", 4), ("last", 4), ("update", 2, True)]
    third = [("step", 5, [2.0]), ("step", 6, [3.0]), ("batch", 2), ("update", 3, True)]
    last = [("evaluate", 6), ("last", 6), ("end", None)]  # no return is higher
    assert moments.told == [("start", 0), *first, *second, *judged, *third, *last]


@pytest.mark.parametrize("name", ["TD3", "HATD3", "DAgger", "GRPO"])
def test_every_kind_of_agent_takes_its_steps_and_updates_by_hand(name):
    made = {
        "TD3": lambda: cadenza.TD3("Pendulum-v1", num_envs=2, **REPLAY),
        "HATD3": lambda: cadenza.HATD3(TargetTeam, num_envs=2, **{**REPLAY, "warmup_steps": 8}),
        "GRPO": lambda: cadenza.GRPO("CartPole-v1", num_envs=4, group_size=2, **ROLLOUT),
        "DAgger": lambda: cadenza.DAgger(
            "Pendulum-v1", expert=lambda o: o[:, :1], round_length=10, updates=5, **TINY
        ),
    }[name]
    whole, mine = made().learn(130, progress=False), made()
    with single_torch_thread():
        mine.begin(130)
        while mine.due or mine.steps < mine.target_steps or mine.is_halfway():
            if mine.due:
                mine.update(mine.batch())
            else:
                mine.step()
    assert mine.updates > 0
    assert_same(mine, whole)


class Doubled(Callback):
    """Doubles rewards before they are learned from."""

    def __init__(self):
        super().__init__()
        self.data_group = "default"

    def begin_batch(self, rewards):
        return {"default": {"rewards": 2.0 * rewards}}


class AlsoDoubled(AgentCallback):
    def on_batch(self, agent, batch):
        return {**batch, "rewards": 2.0 * batch["rewards"]}


def test_what_a_callback_makes_of_a_batch_is_learned_from():
    def learned(*callbacks):
        agent = cadenza.SAC("Pendulum-v1", seed=3, **REPLAY)
        return agent.learn(120, callbacks=callbacks, progress=False)

    plain, *doubled = learned(), learned(Doubled()), learned(AlsoDoubled())
    assert_same(*doubled)
    weights = [next(iter(agent.deployed().parameters())) for agent in (plain, *doubled)]
    assert not torch.equal(weights[0], weights[1])


def test_steps_and_samples_of_the_engine_go_on_with_those_of_the_agent():
    class Count(Callback):
        seen = []  # noqa: RUF012 -- of one agent

        def begin_training(self, bp_step, bp_samples, inf_step):
            self.seen.append((bp_step, bp_samples, inf_step))

        def end_batch(self, bp_step, bp_samples, batch_size, inf_step):
            self.seen.append((bp_step, bp_samples, inf_step))
            assert batch_size == 16

    agent = cadenza.TD3("Pendulum-v1", **{**REPLAY, "warmup_steps": 199})
    for steps in (201, 1):
        agent.learn(steps, callbacks=Count(), progress=False)
    assert Count.seen == [(1, 0, 0), (1, 16, 200), (2, 32, 201), (3, 32, 201), (3, 48, 202)]


class Fails(AgentCallback):
    def __init__(self, moment):
        setattr(self, moment, self.fail)

    def fail(self, *_):
        raise ArithmeticError("of the callback")


@pytest.mark.parametrize("moment", ["on_start", "on_step", "on_batch", "on_update"])
def test_everybody_who_was_started_is_told_the_end(moment, tmp_path):
    class Ends(Callback):
        ended = None

        def end_training(self, exception):
            Ends.ended = exception

    first, never = Moments(), Moments()
    agent = cadenza.DQN("CartPole-v1", **{**REPLAY, "warmup_steps": 5})
    callbacks = [first, Ends(), Fails(moment), never]
    with pytest.raises(ArithmeticError) as raised:
        agent.learn(100, callbacks=callbacks, folder=tmp_path, progress=False)
    assert first.told[-1] == ("end", raised.value)
    has_begun = moment != "on_start"
    assert (("end", raised.value) in never.told) == has_begun
    assert (Ends.ended is raised.value) == has_begun  # those of the engine come after the others
    assert (tmp_path / "last").exists() == has_begun


def test_what_fails_at_the_end_is_raised_after_everybody_ended():
    moments = Moments()
    agent = cadenza.DQN("CartPole-v1", **REPLAY)
    with pytest.raises(BaseExceptionGroup) as raised:
        agent.learn(10, callbacks=[Fails("on_end"), moments], progress=False)
    assert [type(error) for error in raised.value.exceptions] == [ArithmeticError]
    assert moments.told[-1] == ("end", None)


@pytest.mark.parametrize("moment", ["on_step", "on_evaluate", "on_update"])
def test_a_callback_stops_a_training_in_good_order(moment, tmp_path):
    class Stops(AgentCallback):
        def __init__(self):
            setattr(self, moment, self.stop)

        def stop(self, agent, *_):
            if agent.steps >= 60:
                raise TrainingShutdownException

    agent = cadenza.DQN("CartPole-v1", **REPLAY)
    options = {"evaluate_every": 60, "evaluation_episodes": 1, "progress": False}
    agent.learn(500, callbacks=Stops(), folder=tmp_path, **options)
    assert agent.steps == 60
    assert cadenza.DQN.load(tmp_path / "last").steps == 60
    assert cadenza.DQN.load(tmp_path / "best").best_return == agent.best_return
