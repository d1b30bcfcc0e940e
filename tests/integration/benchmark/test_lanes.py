"""Episodes in lanes: equal bytes however many lanes there are, and what the scalar loop plays."""

from itertools import product

import numpy as np
import pytest
import torch

from cadenza.aht.config import EnvConfig, PartnerConfig, SafetyConfig
from cadenza.benchmark import lanes
from cadenza.benchmark.cells import initial_state_seed
from cadenza.benchmark.episodes import EpisodeTag, open_world, run_episode
from cadenza.benchmark.lanes import open_lanes, play_lanes
from cadenza.benchmark.policies import GoalPolicy, NetworkPolicy, load_policy
from cadenza.benchmark.tasks import get_task
from cadenza.core.arrays import in_blocks
from cadenza.core.checkpoints import CheckpointMetadata, save_checkpoint
from cadenza.core.device import network_fingerprint, single_torch_thread
from cadenza.core.errors import InputError, NotReadyError
from cadenza.evaluation.results import episode_line
from cadenza.learn.nn.portable import Output, perceptron
from tests.campaigns import size

FILTERED = SafetyConfig(enabled=True)
UNFILTERED = SafetyConfig()


def tags(count, partner, *, seeds=3):
    """Episodes of several evaluation seeds in turn."""
    return [
        EpisodeTag(
            seed=i % seeds,
            episode_idx=i,
            initial_state_seed=initial_state_seed(i % seeds, i),
            policy="ego",
            condition="any",
            partner=partner,
        )
        for i in range(count)
    ]


def network(inputs, outputs, *, limit):
    """A network that drives hither and thither."""
    rng = torch.Generator().manual_seed(4)

    def weights(*shape):
        return torch.randn(*shape, generator=rng) / shape[-1] ** 0.5

    bound = np.full(outputs, limit, np.float32)
    shapes = ((48, inputs), (48,), (48, 48), (48,), (outputs, 48), (outputs,))
    output = Output(kind="mean", low=-bound, high=bound)
    return perceptron([weights(*shape) for shape in shapes], "tanh", output)


def make_network(seat):
    made = network(seat.observation_dim, seat.action_dim, limit=float(seat.high[0]))
    return NetworkPolicy(made, seat)


def builtin(name, root):
    return lambda seat: load_policy(name, seat=seat, artifacts_root=root)


def played(episodes, width, *, env, policy, safety=UNFILTERED, partner=None):
    """Lines of the results of ``episodes`` in ``width`` lanes, in order."""
    partner = partner or PartnerConfig(class_name=episodes[0].partner)
    with (
        single_torch_thread(),
        open_lanes(
            env=env, partner=partner, safety=safety, lanes=width, make_policy=policy
        ) as world,
    ):
        results = dict(play_lanes(world, episodes))
    return [episode_line(results[i]) for i in range(len(episodes))]


def alone(tag, *, env, policy, safety=UNFILTERED):
    """Result of one episode in the scalar loop."""
    with (
        single_torch_thread(),
        open_world(
            env=env,
            partner=PartnerConfig(class_name=tag.partner),
            safety=safety,
            root_seed=tag.seed,
            make_policy=policy,
        ) as world,
    ):
        return run_episode(world, tag)


CROSSING = EnvConfig(task="crossing", episode_length=60)
#: What plays, with which settings: (env, policy, partner, filter).
GAMES = {
    "crossing, network, chaser, filter": (CROSSING, make_network, "crossing_chaser", FILTERED),
    "crossing, random, wanderer": (CROSSING, "random", "crossing_wanderer", UNFILTERED),
    "crossing of four, goal_pd, filter": (
        EnvConfig(task="crossing", episode_length=60, options={"num_robots": 4}),
        "goal_pd", "crossing_late_braker", FILTERED,
    ),
    "push, network": (
        EnvConfig(task="mpe_cooperative_push", episode_length=20),
        make_network, "scripted_heuristic", UNFILTERED,
    ),
}  # fmt: skip


@pytest.mark.parametrize("game", GAMES)
def test_bytes_depend_neither_on_the_number_of_lanes_nor_on_refilling(game, tmp_path):
    env, policy, partner, safety = GAMES[game]
    policy = builtin(policy, tmp_path) if isinstance(policy, str) else policy
    many = {"env": env, "policy": policy, "safety": safety}
    episodes = tags(size(310, 1000), partner)
    whole = played(episodes, 300, **many)
    assert len(set(whole)) == len(whole)
    assert played(episodes[: size(140, 1000)], 128, **many) == whole[: size(140, 1000)]
    for width, count in ((16, size(20, 300)), (2, size(4, 40))):
        assert played(episodes[-count:], width, **many) == whole[-count:]


def test_filter_with_more_lanes_than_one_pass_has_other_bits_without_its_chunks(monkeypatch):
    """So the sizes of the filter's passes are part of the plan, and the test above has teeth."""
    env, _, partner, safety = GAMES["crossing of four, goal_pd, filter"]
    many = {"env": env, "policy": GoalPolicy, "safety": safety}
    episodes = tags(300, partner)
    chunked = played(episodes, 300, **many)
    monkeypatch.setattr(lanes, "FILTER_ROWS", 300)
    assert played(episodes, 300, **many) != chunked


def frozen(folder, monkeypatch):
    """A partner that plays a network from a checkpoint."""
    rng = torch.Generator().manual_seed(1)
    shapes = {"fc1": (32, 10), "fc2": (32, 32), "head": (2, 32)}
    actor = {"log_std": torch.zeros(2)}
    for name, (outputs, inputs) in shapes.items():
        actor[f"{name}.weight"] = torch.randn(outputs, inputs, generator=rng) / inputs**0.5
        actor[f"{name}.bias"] = torch.randn(outputs, generator=rng)
    facts = {"run_id": "r", "seed": 0, "step": 1, "git_sha": "x", "pyproject_hash": "x"}
    save_checkpoint(
        state_dict={"actor": actor, "activation_func": "tanh"},
        uri="local://partner.pt",
        metadata=CheckpointMetadata(**facts),
        artifacts_root=folder,
    )
    monkeypatch.setenv("CADENZA_ARTIFACTS_ROOT", str(folder))
    return PartnerConfig(class_name="frozen_mappo", weights_uri="local://artifacts/partner.pt")


def test_frozen_networks_act_the_same_beside_any_number_of_others(tmp_path, monkeypatch):
    partner = frozen(tmp_path, monkeypatch)
    many = {"env": CROSSING, "policy": make_network, "safety": FILTERED, "partner": partner}
    episodes = tags(140, "frozen")
    whole = played(episodes, 128, **many)
    assert played(episodes[-24:], 16, **many) == whole[-24:]
    assert played(episodes[:3], 2, **many) == whole[:3]


#: Numbers that may be rounded otherwise; lambda is a step function of them.
CLOSE = ("episode_return", "min_distance_m", "goal_distance_m", "intervention_mean",
         "intervention_peak", "constraint_violation_peak")  # fmt: skip


#: Beside every partner without a network, and beside one with it.
PLAYED = [*product([GoalPolicy, make_network], get_task("crossing").partners)]


@pytest.mark.parametrize(
    ("policy", "partner"), size(PLAYED[: len(get_task("crossing").partners) + 1], PLAYED)
)
def test_lanes_play_what_the_scalar_loop_plays(policy, partner):
    env = EnvConfig(task="crossing", episode_length=200)
    many = {"env": env, "policy": policy, "safety": FILTERED}
    episodes = tags(size(4, 40), partner, seeds=1)
    with (
        single_torch_thread(),
        open_lanes(
            env=env,
            partner=PartnerConfig(class_name=partner),
            safety=FILTERED,
            lanes=len(episodes),
            make_policy=policy,
        ) as world,
    ):
        results = dict(play_lanes(world, episodes))
    for index, tag in enumerate(episodes):
        one, other = (e.model_dump() for e in (results[index], alone(tag, **many)))
        for name in CLOSE:
            assert one.pop(name) == pytest.approx(other.pop(name), abs=1e-3), name
        for record in (one, other):
            for name in ("lambda_mean", "lambda_var", "slack_peak"):
                assert np.isfinite(record["safety"].pop(name))
        assert one == other


def test_plain_tasks_have_the_bytes_of_the_scalar_loop(tmp_path):
    for env, name, partner in (
        (CROSSING, "random", "crossing_chaser"),
        (EnvConfig(task="mpe_cooperative_push", episode_length=20), "random", "scripted_heuristic"),
    ):
        many = {"env": env, "policy": builtin(name, tmp_path)}
        episodes = tags(5, partner)
        assert played(episodes, 3, **many) == [episode_line(alone(t, **many)) for t in episodes]


def test_simulated_arms_have_the_bytes_of_the_scalar_loop_and_the_strata_of_their_rows(tmp_path):
    pytest.importorskip("mjbatch", reason="the extra 'mujoco' is not installed")
    env = EnvConfig(task="cocarry_mj", episode_length=12)
    many = {"env": env, "policy": builtin("cocarry_reference", tmp_path)}
    episodes = tags(6, "cocarry_mixed")
    lines = played(episodes, 4, **many)
    assert lines == [episode_line(alone(tag, **many)) for tag in episodes]
    assert len({line.split(b'"stratum":')[1].split(b"}")[0] for line in lines}) > 1


class Forgetful:
    """A policy that knows one episode at a time: it counts its steps."""

    def __init__(self, seat):
        self._size = seat.action_dim

    def reset(self, *, seed):
        self._steps = seed % 3

    def act(self, obs):
        self._steps += 1
        push = np.sin(self._steps) + obs["agent"]["ego"]["state"][0]
        return np.full(self._size, push, np.float32)


def test_policies_of_one_episode_are_played_one_per_lane():
    many = {"env": CROSSING, "policy": Forgetful}
    episodes = tags(5, "crossing_stationary")
    assert played(episodes, 3, **many) == [episode_line(alone(t, **many)) for t in episodes]


class Broken(Forgetful):
    def act(self, obs):
        action = super().act(obs)
        return action * np.nan if self._steps > 4 else action


def test_error_in_one_lane_names_its_episode():
    with pytest.raises(
        InputError, match=r"episode 0 of seed 0 \(initial_state_seed \d+\), step 2: expected finite"
    ):
        played(tags(3, "crossing_stationary"), 3, env=CROSSING, policy=Broken)


def test_episode_without_an_end_is_named(monkeypatch):
    monkeypatch.setattr(lanes, "MAX_STEPS", 10)
    with pytest.raises(NotReadyError, match=r"episode 0 of seed 0 .*expected an end within 10"):
        played(tags(2, "crossing_stationary"), 2, env=CROSSING, policy=Forgetful)


def test_rows_of_a_block_depend_on_no_other_row():
    play = network(10, 2, limit=1.0).act
    states = np.random.default_rng(0).normal(size=(200, 10)).astype(np.float32)
    whole = in_blocks(play, states)
    for count in (1, 2, 31, 32, 33):
        np.testing.assert_array_equal(in_blocks(play, states[:count]), whole[:count])
    np.testing.assert_allclose(whole, play(states), atol=1e-6)


def test_fingerprint_is_the_same_again():
    assert network_fingerprint() == network_fingerprint()
    assert len(network_fingerprint()) == 64
