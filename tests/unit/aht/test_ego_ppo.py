import copy
import math

import numpy as np
import pytest
import torch

from cadenza.aht import ego_ppo
from cadenza.aht.ego_ppo import EgoPPOTrainer
from cadenza.core.errors import CheckpointError, InputError, NotReadyError
from cadenza.learn import advantages
from cadenza.learn.agents import happo
from tests.unit.aht.ego_ppo_fakes import (
    ACTION_DIM,
    OBSERVATION_DIM,
    MadeUpTask,
    advance,
    observation,
    trainer,
    weights,
)

STATE = np.linspace(-1.0, 1.0, OBSERVATION_DIM, dtype=np.float32)
ROLLOUT = 12


class EventList:
    def __init__(self):
        self.events = []

    def info(self, event, **fields):
        self.events.append({"event": event} | fields)


def spy_on(rollouts):
    original = happo.run_interleaved

    def run_and_record(learner, rollout, returns, rng, **options):
        rollouts.append((learner.config, returns, options))
        return original(learner, rollout, returns, rng, **options)

    return run_and_record


def same_weights(one, other):
    pairs = weights(one), weights(other)
    return all(torch.equal(pairs[0][name], pairs[1][name]) for name in pairs[0])


def run(learner, *, updates=2, seed=0, num_envs=None):
    task = MadeUpTask(seed, num_envs)
    state = task.state()
    actions = []
    for _ in range(updates):
        taken, state = advance(learner, task, state, ROLLOUT)
        actions.append(taken)
        learner.update()
    return np.concatenate(actions)


def test_returned_action_is_a_copy_of_the_stored_one():
    learner = trainer()
    action = learner.act(observation(STATE))
    action[:] = 99.0
    learner.observe(observation(STATE), 0.0, False)
    assert float(learner.training_state()["buffer"]["actions"].abs().max()) < 99.0


def test_deterministic_action_is_the_mean_and_draws_nothing():
    learner = trainer()
    state_before = learner.training_state()["generator"]
    action = learner.act(observation(STATE), deterministic=True)
    assert np.array_equal(action, learner.act(observation(STATE), deterministic=True))
    assert torch.equal(learner.training_state()["generator"], state_before)
    draws = np.array([learner.act(observation(STATE)) for _ in range(4000)])
    deviation = 0.5 / (1.0 + math.exp(-1.0))
    assert np.allclose(draws.mean(0), action, atol=4 * deviation / math.sqrt(4000))
    assert np.allclose(draws.std(0), deviation, rtol=0.05)


def test_deterministic_query_between_act_and_observe_changes_nothing():
    plain, queried = trainer(), trainer()
    task = MadeUpTask(1)
    for learner in (plain, queried):
        task.rng = np.random.default_rng(1)
        state = task.state()
        for _ in range(ROLLOUT):
            action = learner.act(observation(state))
            if learner is queried:
                learner.act(observation(np.stack([STATE, -STATE])), deterministic=True)
            state, reward, terminated, truncated, _ = task.step(action)
            done = bool(terminated or truncated)
            learner.observe(observation(state), float(reward), done, truncated=done)
        learner.update()
    assert same_weights(plain, queried)


def test_drawn_action_that_is_not_observed_is_replaced():
    learner = trainer()
    learner.act(observation(STATE))
    second = learner.act(observation(-STATE))
    learner.observe(observation(STATE), 1.0, False)
    rollout = learner.training_state()["buffer"]
    assert rollout["length"] == 1
    assert torch.equal(rollout["actions"][0, 0], torch.tensor(second))
    assert torch.equal(rollout["observations"][0, 0], torch.tensor(-STATE))


def test_tensor_state_equals_array_state():
    action = trainer().act(observation(torch.tensor(STATE, requires_grad=True)))
    assert np.array_equal(action, trainer().act(observation(STATE)))
    mean = trainer().act(observation(torch.tensor(STATE)), deterministic=True)
    assert np.array_equal(mean, trainer().act(observation(STATE), deterministic=True))


@pytest.mark.parametrize("before", ["nothing", "observe", "deterministic act", "update"])
def test_observe_without_a_drawn_action_raises(before):
    learner = trainer()
    if before != "nothing":
        learner.act(observation(STATE), deterministic=before == "deterministic act")
    if before == "observe":
        learner.observe(observation(STATE), 0.0, False)
    if before == "update":
        learner.update()
    with pytest.raises(NotReadyError, match=r"expected act\(obs\) before it"):
        learner.observe(observation(STATE), 0.0, False)


def test_act_on_full_rollout_raises():
    learner, task = trainer(), MadeUpTask(0)
    advance(learner, task, task.state(), ROLLOUT)
    with pytest.raises(NotReadyError, match="at most 12 steps"):
        learner.act(observation(STATE))
    learner.update()
    assert learner.act(observation(STATE)).shape == (ACTION_DIM,)


def test_state_of_other_batch_within_rollout_raises():
    learner = trainer()
    learner.act(observation(STATE))
    learner.observe(observation(STATE), 0.0, False)
    with pytest.raises(InputError, match="expected a state of 1 environments"):
        learner.act(observation(np.stack([STATE, STATE])))


TWO, NONE, LAST = np.stack([STATE, STATE]), np.zeros(2, dtype=bool), np.array([False, True])


def acted(state, num_envs=None):
    learner = trainer(num_envs=num_envs)
    learner.act(observation(state))
    return learner


@pytest.mark.parametrize(
    ("attempt", "told"),
    [
        (
            lambda: trainer().act(observation(np.zeros((2, 3), np.float32))),
            "'ego' of shape .5,. or .N, 5",
        ),
        (
            lambda: trainer().act(observation(np.zeros((), np.float32))),
            "'ego' of shape .5,. or .N, 5",
        ),
        (lambda: trainer().act({"agent": {}}), r"expected obs\['agent'\]\['ego'\]\['state'\]"),
        (lambda: trainer().act(observation(np.nan * STATE)), "act: actions: expected finite"),
        (
            lambda: trainer().act(observation(np.nan * STATE), deterministic=True),
            "act: actions: expected finite",
        ),
        (
            lambda: acted(STATE).observe(observation(STATE), np.inf, False),
            "observe: reward: expected finite",
        ),
        (
            lambda: acted(TWO, 2).observe(observation(TWO), np.array([0.0, np.nan]), NONE),
            "observe: reward: expected finite",
        ),
        (
            lambda: acted(TWO, 2).observe(observation(TWO), np.zeros(3), NONE),
            r"expected rewards of shape \(2,\), got \(3,\)",
        ),
        (
            lambda: acted(TWO, 2).observe(observation(STATE), np.zeros(2), NONE),
            "expected the observation of . environment.s., as act had",
        ),
        (
            lambda: acted(STATE).observe(
                observation(STATE), 1.0, True, truncated=True, final_obs=observation(TWO)
            ),
            "expected the observation of . environment.s., as act had",
        ),
        (
            lambda: acted(TWO, 2).observe(observation(TWO), np.zeros(2), LAST, truncated=LAST),
            r"expected final_obs.*environments \[1\]",
        ),
    ],
)
def test_states_and_rewards_of_no_use_are_refused(attempt, told):
    with pytest.raises(InputError, match=told):
        attempt()


def test_state_after_the_step_that_is_not_finite_raises_at_the_update():
    learner = trainer()
    learner.act(observation(STATE))
    learner.observe(observation(np.full_like(STATE, np.nan)), 0.0, False)
    with pytest.raises(InputError, match="observations: expected finite"):
        learner.update()


def test_batched_termination_needs_no_final_obs():
    learner = trainer(num_envs=2)
    states = np.stack([STATE, STATE])
    learner.act(observation(states))
    learner.observe(observation(states), np.zeros(2), np.array([False, True]))
    rollout = learner.training_state()["buffer"]
    assert rollout["finals"] == []
    assert rollout["terminated"].tolist() == [[False, True]]


def test_scalar_time_limit_without_final_obs_takes_the_observation_itself():
    def mean_value(reward, done):
        """The value loss of one epoch on one step: (V - return)²."""
        logger = EventList()
        learner = trainer(gamma=0.5, n_epochs=1, logger=logger)
        learner.act(observation(STATE))
        learner.observe(observation(3 * STATE), reward, done, truncated=done)
        learner.update()
        return logger.events[0]["value_loss"]

    assert mean_value(2.0, True) == mean_value(2.0, False)  # as if the episode went on
    assert mean_value(2.0, True) != mean_value(1.0, True)


def test_update_logs_one_record_of_train_metrics():
    logger = EventList()
    run(trainer(logger=logger), updates=2)
    assert [event["event"] for event in logger.events] == ["scalar", "scalar"]
    assert [event["step"] for event in logger.events] == [12, 24]
    names = {
        "policy_loss", "value_loss", "dist_entropy", "actor_grad_norm", "approx_kl",
        "clip_fraction", "ratio_min", "ratio_max", "advantage_mean", "advantage_std",
        "value_mean", "value_std", "learning_rate",
    }  # fmt: skip
    for event in logger.events:
        assert names <= event.keys()
        assert event["metric_namespace"] == "train"
        assert event["learning_rate"] == 0.01
        assert event["advantage_std"] > 0.0
        assert event["ratio_min"] <= 1.0 <= event["ratio_max"]


def test_batched_update_counts_frames_of_every_environment():
    logger = EventList()
    run(trainer(logger=logger, num_envs=4), updates=2, num_envs=4)
    assert [event["step"] for event in logger.events] == [48, 96]


def test_training_leaves_torch_globals_alone():
    before = torch.get_rng_state()
    run(trainer())
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("wanted", [True, False])
def test_deterministic_kernels_are_on_during_the_update_if_configured(wanted, monkeypatch):
    seen = []
    original = happo.run_interleaved

    def spy(*args, **options):
        seen.append(torch.are_deterministic_algorithms_enabled())
        return original(*args, **options)

    monkeypatch.setattr(happo, "run_interleaved", spy)
    run(trainer(runtime={"deterministic_torch": wanted}), updates=1)
    assert seen == [wanted]


def test_learning_rate_decay_follows_the_frames_done_before_the_update():
    logger = EventList()
    learner = trainer(logger=logger, total_frames=48, extras={"lr_decay": True})
    run(learner, updates=5)
    rates = [event["learning_rate"] for event in logger.events]
    assert rates == pytest.approx([0.01, 0.0075, 0.005, 0.0025, 0.0])  # 1 - k 12/48
    groups = learner.state_dict()["critic_optim"]["param_groups"]
    assert groups[0]["lr"] == rates[-1]


def test_optional_extras_reach_the_update(monkeypatch):
    seen = []
    monkeypatch.setattr(happo, "run_interleaved", spy_on(seen))
    run(trainer(), updates=1)
    run(trainer(extras={"target_kl": 0.02, "critic_max_grad_norm": 0.5}), updates=1)
    reached = [(o["target_kl"], config.critic_max_gradient_norm) for config, _, o in seen]
    assert reached == [(None, None), (0.02, 0.5)]


def test_update_that_diverges_raises():
    learner, task = trainer(), MadeUpTask(0)
    task.step = lambda action: (STATE, np.float64(1e30), np.bool_(False), np.bool_(False), STATE)
    advance(learner, task, task.state(), ROLLOUT)
    with pytest.raises(InputError, match="expected finite numbers, got loss = inf"):
        learner.update()


def test_checkpoint_round_trip_restores_the_learner(tmp_path):
    learner = trainer()
    run(learner)
    torch.save(learner.state_dict(), tmp_path / "policy.pt")
    payload = torch.load(tmp_path / "policy.pt", weights_only=True)
    assert set(payload) == {"actor", "actor_optim", "critic", "critic_optim"}
    other = trainer(seed=4)
    other.load_state_dict(payload)
    assert same_weights(learner, other)
    assert np.array_equal(
        learner.act(observation(STATE), deterministic=True),
        other.act(observation(STATE), deterministic=True),
    )
    moments = [x.state_dict()["actor_optim"]["state"][0]["exp_avg"] for x in (learner, other)]
    assert torch.equal(*moments)


def test_loaded_checkpoint_brings_its_action_noise():
    learner, other = trainer(), trainer()
    run(learner, updates=20)
    other.load_state_dict(copy.deepcopy(learner.state_dict()))

    def noise(one):
        mean = one.act(observation(STATE), deterministic=True)
        return np.std([one.act(observation(STATE)) - mean for _ in range(2000)], axis=0)

    deviation = 0.5 * learner.state_dict()["actor"]["act.action_out.log_std"].sigmoid().numpy()
    assert np.allclose(noise(other), deviation, rtol=0.05)
    assert not np.allclose(noise(trainer()), deviation, rtol=0.05)


def test_checkpoint_of_something_else_is_refused():
    payload = trainer().state_dict()
    del payload["critic"]
    with pytest.raises(CheckpointError, match=r"\['critic'\] missing"):
        trainer().load_state_dict(payload)
    with pytest.raises(CheckpointError, match="expected the sizes of this configuration"):
        trainer().load_state_dict(trainer(hidden_dim=16).state_dict())


def test_checkpoint_keeps_a_bound_of_the_deviation_other_than_harls():
    wide = trainer(extras={"max_action_std": 1.5})
    payload = wide.state_dict()
    assert payload["actor_max_std"] == 1.5
    trainer(extras={"max_action_std": 1.5}, seed=3).load_state_dict(payload)
    with pytest.raises(CheckpointError, match=r"bounded by 0\.5, got 1\.5; set ppo_extras"):
        trainer().load_state_dict(payload)


def test_module_functions_are_used_and_advertised():
    assert EgoPPOTrainer.USES_MODULE_GAE is True
    assert ego_ppo.compute_gae is advantages.compute_gae
    assert ego_ppo.normalize_advantages is advantages.normalize_advantages
