"""Every setting of every algorithm is read and changes what is done or learned.

Each algorithm is trained briefly with small settings, and once more for each setting with another
legal value of it. What is compared are the actions on the way and what a checkpoint holds, or the
policy afterwards.
"""

from functools import cache, partial

import numpy as np
import pytest
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import cadenza
from cadenza.aht.config import EgoAHTConfig
from cadenza.aht.train import load_algorithm
from cadenza.core.episodes import Episodes
from cadenza.core.errors import ConfigurationError
from cadenza.core.payloads import serialise
from cadenza.learn import configs
from cadenza.learn.configs import (
    BCConfig,
    CECConfig,
    DAggerConfig,
    E3TConfig,
    GRPOConfig,
    HAPPOConfig,
    HATD3Config,
    LIAMConfig,
    MAPPOConfig,
    PPOConfig,
    UPDConfig,
)
from tests.campaigns import size
from tests.demonstrations import demonstrations
from tests.unit.aht.seats import Frozen, Seats, drive
from tests.unit.learn.counting_envs import TargetTeam
from tests.unit.learn.open_games import Near
from tests.unit.learn.partner_envs import Matchings, Meeting
from tests.unit.learn.sign_envs import SignEnv

#: Another value for each setting, by name; nothing here is what `SMALL` or a default says.
OTHER = {
    "action_bins": 3,
    "action_noise": 0.5,
    "activation": "elu",
    "advantage_epsilon": 1.0,
    "batch_size": 4,
    "belief_size": 3,
    "bins": 31,
    "candidates": 3,
    "chunk_length": 3,
    "clip_eps": 1e-4,
    "clip_epsilon": 1e-4,
    "clip_value": 0.01,
    "copies": 1,
    "copy_every": 1,
    "copy_share": 0.9,
    "compile": True,
    "critic_max_grad_norm": 1e-3,
    "critic_max_gradient_norm": 1e-3,
    "critic_sizes": (4,),
    "decay_learning_rate": True,
    "double": False,
    "ensemble": 0.1,
    "ensemble_size": 3,
    "entropy_coefficient": 0.1,
    "epochs": 2,
    "epsilon_end": 0.9,
    "epsilon_frames": 40,
    "epsilon_start": 0.2,
    "executed_steps": 2,
    "expert_decay": 0.0,
    "exploration_noise": 0.5,
    "freeze_encoder": True,
    "gae_lambda": 0.5,
    "gamma": 0.5,
    "group_size": 2,
    "held_out": 0.5,
    "history": 2,
    "hidden_dim": 4,
    "hidden_sizes": (4,),
    "huber_delta": None,
    "imagined_size": 9,
    "initial_alpha": 0.1,
    "initial_log_std": -1.0,
    "kl_coefficient": 1.0,
    "learning_rate": 1e-2,
    "loss": "l1",
    "lr": 1e-2,
    "lr_decay": True,
    "max_action_std": 1.0,
    "max_alpha": 0.2,
    "max_gradient_norm": 1e-3,
    "max_value": 20.0,
    "memory_size": 12,
    "min_value": -20.0,
    "model_hidden": 4,
    "model_layers": 2,
    "model_learning_rate": 0.1,
    "model_updates": 9,
    "n_epochs": 2,
    "n_step": 3,
    "noise": 0.9,
    "noise_clip": 0.01,
    "noise_memory": 0.0,
    "noise_share": 1.0,
    "normalize_advantages": False,
    "normalize_observations": True,
    "normalize_rewards": True,
    "normalize_values": True,
    "num_elites": 2,
    "policy_delay": 1,
    "precision": "bf16",
    "priority_exponent": 0.8,
    "random_share": 0.9,
    "real_share": 0.75,
    "refresh_reference_every": 1,
    "remembered_scores": 8,
    "reset_every_rollout": False,
    "rollout_every": 1,
    "rollout_length": 4,
    "rollout_states": 4,
    "round_length": 6,
    "smoothing_ratio": 1.5,
    "squash_actions": True,
    "target_entropy": -3.0,
    "target_kl": 1e-9,
    "target_noise": 0.9,
    "target_period": 3,
    "tau": 0.5,
    "train_every": 2,
    "truncate_at_first_done": False,
    "uniform_share": 1.0,
    "updates": 2,
    "value_coefficient": 0.1,
    "value_loss": "huber",
    "warmup_steps": 10,
}
OFF_POLICY = {
    "learning_rate": 3e-3,
    "batch_size": 8,
    "hidden_sizes": (8,),
    "memory_size": 16,
    "warmup_steps": 8,
    "train_every": 1,
}
ENTROPIC = {**OFF_POLICY, "target_entropy": 2.0}
ON_POLICY = {
    "learning_rate": 3e-3,
    "rollout_length": 8,
    "batch_size": 8,
    "epochs": 3,
    "hidden_sizes": (8,),
}
#: Settings of each algorithm that make it quick, and let every other setting matter.
SMALL = {
    "sac": ENTROPIC,
    "hlgauss": ENTROPIC,
    "td3": OFF_POLICY,
    "hatd3": OFF_POLICY,
    "dqn": {**OFF_POLICY, "epsilon_frames": 30, "epsilon_start": 0.95},
    "mbpo": {
        **ENTROPIC,
        "ensemble_size": 2,
        "num_elites": 1,
        "model_hidden": 8,
        "model_layers": 1,
        "model_updates": 4,
        "rollout_every": 2,
        "rollout_states": 8,
        "imagined_size": 20,
        "rollout_length": 2,
    },
    "ppo": ON_POLICY,
    "happo": {"rollout_length": 8, "batch_size": 8, "n_epochs": 3, "hidden_dim": 8, "lr": 3e-3},
    "ppo_extras": {},
}


def ego(section, steps=24, **changes):
    """Return the actions of a short training in the ego's seat, and the policy after it."""
    algo = "happo" if section == "ppo_extras" else section
    config = EgoAHTConfig.model_validate(
        {
            "algo": algo,
            "total_frames": 24,
            "env": {"task": "any"},
            algo: SMALL[algo],
            section: {**SMALL[section], **changes},
            **({} if algo in ("ppo", "happo") else {"happo": {"rollout_length": 8}}),
        }
    )
    trainer = load_algorithm(algo)(config, env=Seats(), partner=Frozen(), ego_uid="ego")
    rng = np.random.default_rng(0)
    actions = drive(trainer, rng, steps, every=config.rollout_length)
    return actions.tobytes(), serialise(trainer.state_dict())


def signs(name, **changes):
    """Return what an on-policy learner decides after a short training on vector environments."""
    envs = SyncVectorEnv(
        [lambda: SignEnv(discrete=False, horizon=6)] * 4, autoreset_mode=AutoresetMode.SAME_STEP
    )
    trained = getattr(cadenza, name)(envs, **{**ON_POLICY, **changes}).learn(96, progress=False)
    return trained.steps, trained.updates, trained.predict(np.array([[1.0], [-1.0]])).tobytes()


def imitated(**changes):
    """Return what was done and learned in a short imitation."""
    small = {"round_length": 8, "updates": 4, "batch_size": 8, "hidden_sizes": (8,), "num_envs": 2}
    agent = cadenza.DAgger("Pendulum-v1", expert=lambda seen: seen[:, 1:2], **{**small, **changes})
    return serialise(agent.learn(48, progress=False).state_dict()["learned"])


def cloned(**changes):
    """Return what was learned from a few demonstrations, and what is played then."""
    small = {"chunk_length": 2, "batch_size": 8, "hidden_sizes": (8,)}
    both = Box(-9.0, 9.0, (3,)), Box(-4.0, 4.0, (2,))
    shown = Episodes.of(demonstrations((9, 8, 7, 6)))
    agent = cadenza.BC(both, demonstrations=shown, **{**small, **changes})
    player = agent.learn(4, progress=False).player()
    played = [player(np.full(3, step)).tobytes() for step in range(4)]
    return played, serialise(agent.state_dict()["learned"])


def adapted(name, **changes):
    """Return what an ego that models its partner decides after a short training, and remembers."""
    base, space = {**ON_POLICY, "num_envs": 4, "sequence_length": 5}, Box(-1.0, 3.0, (2,))
    world = partial(Meeting, space)
    if name == "E3T":
        base["num_envs"], world = None, Matchings(space)
    trained = getattr(cadenza, name)(world, **{**base, **changes}).learn(96, progress=False)
    seen = np.eye(4, dtype=np.float32)
    action, state = trained.predict(seen, state=None)
    return trained.steps, action.tobytes(), state.tobytes(), serialise(trained.learner.state_dict())


def team(name, base, **changes):
    """Return what a team decides after a short training."""
    trained = getattr(cadenza, name)(TargetTeam(4), **{**base, **changes})
    trained.learn(64, progress=False)
    joint = np.linspace(-1.0, 1.0, 8, dtype=np.float32).reshape(4, 2)
    return trained.steps, np.array(trained.predict(joint)).tobytes()


def self_played(name, **changes):
    """Return what an ego beside copies of itself has learned after a short training."""
    base = {**ON_POLICY, "memory_size": 8, "sequence_length": 5, "batch_size": 32}
    base |= {"candidates": 4, "copy_every": 2} if name == "UPD" else {}
    trained = getattr(cadenza, name)(Near(8), **{**base, **changes}).learn(256, progress=False)
    return trained.steps, serialise(trained.learner.state_dict())


#: Every way to an algorithm: the class of its settings, and a short training with changed ones.
TRAININGS = {
    **{
        f"ego {name}": (EgoAHTConfig.model_fields[name].annotation, partial(ego, name))
        for name in SMALL
    },
    "PPO": (PPOConfig, partial(signs, "PPO")),
    "GRPO": (GRPOConfig, partial(signs, "GRPO")),
    "LIAM": (LIAMConfig, partial(adapted, "LIAM")),
    "E3T": (E3TConfig, partial(adapted, "E3T")),
    "UPD": (UPDConfig, partial(self_played, "UPD")),
    "CEC": (CECConfig, partial(self_played, "CEC")),
    "DAgger": (DAggerConfig, imitated),
    "BC": (BCConfig, cloned),
    "MAPPO": (MAPPOConfig, partial(team, "MAPPO", ON_POLICY)),
    "HAPPO": (HAPPOConfig, partial(team, "HAPPO", ON_POLICY)),
    "HATD3": (HATD3Config, partial(team, "HATD3", {**OFF_POLICY, "train_every": 4})),
}
#: What the training loop reads; what concerns choices, memories, goals, priorities and worlds that
#: vary is compared in `test_self_play.py`, `test_ego_vector_env.py`, `test_choices.py`,
#: `test_memory_policies.py`, `test_hindsight.py` and `test_replay_settings.py` of the unit tests.
ELSEWHERE = {
    *("flush_partial_rollout", "action_masks", "factored_choices", "memory", "sequence_length"),
    *("hindsight", "importance_exponent", "concentration", "ranges", "layouts"),
}


@cache
def plain(name):
    return TRAININGS[name][1]()


#: Settings of one class matter through every door to it: all doors by night, the last one by day.
DOORS = size({kind: name for name, (kind, _) in TRAININGS.items()}.values(), TRAININGS)


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        (name, setting)
        for name in DOORS
        for setting in TRAININGS[name][0].model_fields
        if setting not in ELSEWHERE | {"compile"} and (name, setting) != ("PPO", "memory_size")
    ],
)
def test_every_setting_changes_what_is_done_or_learned(name, setting):
    try:
        changed = TRAININGS[name][1](**{setting: OTHER[setting]})
    except ConfigurationError as refused:  # by a processor without such instructions
        changed = str(refused)
        assert setting == "precision"
    assert changed != plain(name)


def test_every_class_of_settings_is_walked():
    classes = [kind for kind in vars(configs).values() if isinstance(kind, type)]
    last = {k for k in classes if issubclass(k, configs.FrozenModel) and not k.__subclasses__()}
    assert last <= {kind for kind, _ in TRAININGS.values()}
    assert last >= {configs.HLGaussConfig, configs.GRPOConfig, configs.HAPPOConfig}


@pytest.mark.parametrize("name", ["sac", "hlgauss", "td3", "dqn", "mbpo"])
def test_compiled_updates_are_another_mode(name):
    assert ego(name, steps=0, compile=True) != ego(name, steps=0)


@pytest.mark.parametrize("name", DOORS)
def test_equal_settings_give_equal_trainings(name):
    assert plain(name) == TRAININGS[name][1]()
