import dataclasses
import importlib
import logging
from hashlib import sha256

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiDiscrete

from cadenza.core.checkpoints import CheckpointMetadata, save_checkpoint
from cadenza.core.errors import (
    CadenzaError,
    CheckpointError,
    InputError,
    IntegrityError,
)
from cadenza.learn.nn.gaussian_actor import GaussianActor
from cadenza.partners import PartnerSpec, load_partner
from tools import record_harl_update as recorder

URI = "local://artifacts/actor.pt"


def store(folder, payload):
    metadata = CheckpointMetadata(run_id="r", seed=0, step=1, git_sha="g", pyproject_hash="p")
    save_checkpoint(
        state_dict=payload, uri="local://actor.pt", metadata=metadata, artifacts_root=folder
    )


def mappo_state(observation=4, hidden=8, action=3):
    generator = torch.Generator().manual_seed(1)
    sizes = {"fc1": (hidden, observation), "fc2": (hidden, hidden), "head": (action, hidden)}
    return {
        f"{layer}.{kind}": torch.randn(size if kind == "weight" else size[:1], generator=generator)
        for layer, size in sizes.items()
        for kind in ("weight", "bias")
    }


def harl_state(hidden=(8, 8)):
    generator = torch.Generator().manual_seed(2)
    return GaussianActor(4, 3, hidden_sizes=hidden, generator=generator).state_dict()


def obs_of(state, uid="arm"):
    return {"agent": {uid: {"state": state}}}


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Stores a payload and loads the partner that plays it."""
    monkeypatch.setenv("CADENZA_ARTIFACTS_ROOT", str(tmp_path))

    def make(name, payload=None, **fields):
        if payload is not None:
            said = {"activation_func": "relu" if name == "frozen_harl" else "tanh"}
            store(tmp_path, payload if "critic" in payload else {**said, **payload})
        fields = {"weights_uri": URI, "extra": {"uid": "arm"}} | fields
        return load_partner(PartnerSpec(name, 0, **fields))

    return make


STATE = np.linspace(-1.0, 1.0, 4)


def test_mappo_actor_computes_two_tanh_layers_and_a_linear_head(load):
    state = mappo_state()
    w = {name: tensor.numpy().astype(np.float64) for name, tensor in state.items()}
    hidden = np.tanh(w["fc1.weight"] @ STATE + w["fc1.bias"])
    hidden = np.tanh(w["fc2.weight"] @ hidden + w["fc2.bias"])
    expected = w["head.weight"] @ hidden + w["head.bias"]
    action = load("frozen_mappo", {"actor": state}).act(obs_of(STATE))
    assert action.dtype == np.float32
    np.testing.assert_allclose(action, expected, rtol=1e-5)
    assert np.abs(expected).max() > 1.0  # neither squashed nor clipped


def test_flat_mappo_checkpoint_acts_alike_and_is_warned_about(load, caplog):
    wanted = load("frozen_mappo", {"actor": mappo_state()}).act(obs_of(STATE))
    with caplog.at_level(logging.WARNING):
        flat = load("frozen_mappo", mappo_state()).act(obs_of(STATE))
    assert flat.tobytes() == wanted.tobytes()
    assert "without the key 'actor'" in caplog.text


@pytest.mark.parametrize("sizes", [(10, 2, 64), (14, 7, 32)])
def test_checkpoint_of_real_harl_gives_harls_own_actions(load, sizes):
    pytest.importorskip("harl", reason="needs the oracle extra")
    happo = recorder.build_harl_actor(5, *sizes)
    states = torch.randn(6, sizes[0], generator=torch.Generator().manual_seed(3))
    recurrent, _, masks = recorder.harl_extras(torch.zeros(6, sizes[1]))
    theirs, _ = happo.act(states, recurrent, masks, deterministic=True)
    payload = {
        "actor": happo.actor.state_dict(),
        "actor_optim": happo.actor_optimizer.state_dict(),
        "critic": {},
        "critic_optim": {},
    }
    ours = load("frozen_harl", payload).act(obs_of(states))
    np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=1e-6, atol=1e-7)


def test_harl_depth_is_read_off_the_keys(load):
    for hidden in [(8,), (8, 8, 8)]:
        actor = GaussianActor.from_state_dict(harl_state(hidden))
        action = load("frozen_harl", {"actor": harl_state(hidden)}).act(obs_of(STATE))
        with torch.no_grad():
            wanted = actor(torch.tensor(STATE, dtype=torch.float32)[None])[0]
        np.testing.assert_allclose(action, wanted.numpy(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ["frozen_mappo", "frozen_harl"])
def test_samples_have_the_actors_spread_and_come_from_the_episodes_own_generator(load, name):
    log_std = torch.log(torch.tensor([0.5, 0.1, 0.2]))
    harl = harl_state() | {"act.action_out.log_std": torch.tensor([0.0, 1.0, -1.0])}
    mappo = mappo_state() | {"log_std": log_std}
    partner = load(name, {"actor": mappo if name == "frozen_mappo" else harl})
    # HARL's bounded by a sigmoid: half of 0.5, 0.731 and 0.269
    spread = [0.5, 0.1, 0.2] if name == "frozen_mappo" else [0.25, 0.3655, 0.1345]
    rows = np.repeat(STATE[None], 4000, axis=0)
    global_state = torch.random.get_rng_state()
    partner.reset(seed=4)
    drawn = partner.act(obs_of(rows), deterministic=False)
    assert torch.equal(torch.random.get_rng_state(), global_state)
    np.testing.assert_allclose(drawn.std(axis=0), spread, rtol=0.06)
    np.testing.assert_allclose(drawn.mean(axis=0), partner.act(obs_of(STATE)), atol=0.04)
    partner.reset(seed=4)
    np.testing.assert_allclose(partner.act(obs_of(STATE), deterministic=False), drawn[0], atol=1e-6)
    partner.reset_row(2, seed=4)
    third = partner.act(obs_of(rows[:3]), deterministic=False)[2]
    np.testing.assert_allclose(third, drawn[0], atol=1e-6)


def test_sampling_without_a_spread_gives_the_mean(load):
    partner = load("frozen_mappo", {"actor": mappo_state()})
    assert (
        partner.act(obs_of(STATE), deterministic=False).tobytes()
        == partner.act(obs_of(STATE)).tobytes()
    )


def test_older_name_of_the_artifacts_folder_counts(load, tmp_path, monkeypatch):
    store(tmp_path, {"actor": mappo_state()})
    monkeypatch.delenv("CADENZA_ARTIFACTS_ROOT")
    monkeypatch.setenv("CONCERTO_ARTIFACTS_ROOT", str(tmp_path))
    assert load("frozen_mappo").act(obs_of(STATE)).shape == (3,)


@pytest.mark.parametrize("name", ["frozen_mappo", "frozen_harl"])
@pytest.mark.parametrize(
    "fields", [{"weights_uri": None}, {"extra": {}}, {"extra": {"uid": ""}}], ids=str
)
def test_spec_without_weights_or_robot_is_refused_at_construction(load, name, fields):
    with pytest.raises(ValueError, match="weights_uri" if "weights_uri" in fields else "'uid'"):
        load(name, **fields)


def without(state, key):
    return {name: tensor for name, tensor in state.items() if name != key}


BROKEN = [
    ("frozen_mappo", {"other": torch.zeros(1)}, "'actor'"),
    ("frozen_mappo", {"actor": torch.zeros(1)}, "'actor'"),
    ("frozen_mappo", {"actor": without(mappo_state(), "fc2.weight")}, "fc1/fc2/head"),
    ("frozen_mappo", {"actor": mappo_state() | {"fc1.weight": 3.0}}, "must be torch.Tensor"),
    ("frozen_mappo", {"actor": mappo_state() | {"fc2.weight": torch.zeros(8, 7)}}, "fc2 shape"),
    (
        "frozen_mappo",
        {"actor": mappo_state() | {"head.weight": torch.zeros(3, 7)}},
        "head input dim",
    ),
    (
        "frozen_mappo",
        {"actor": mappo_state() | {"fc1.bias": torch.zeros(7)}},
        "load_state_dict failed",
    ),
    ("frozen_mappo", {"actor": mappo_state() | {"more": torch.zeros(7)}}, "load_state_dict failed"),
    ("frozen_harl", {"critic": {}}, "'actor'"),
    (
        "frozen_harl",
        {"actor": without(harl_state(), "base.feature_norm.weight")},
        r"base\.feature_norm",
    ),
    (
        "frozen_harl",
        {"actor": without(harl_state(), "act.action_out.fc_mean.weight")},
        r"act\.action_out\.fc_mean",
    ),
    (
        "frozen_harl",
        {"actor": harl_state() | {"base.feature_norm.weight": 1}},
        "must be torch.Tensor",
    ),
    (
        "frozen_harl",
        {"actor": harl_state() | {"base.mlp.fc.3.bias": torch.zeros(7)}},
        "load_state_dict failed",
    ),
]


@pytest.mark.parametrize(("name", "payload", "message"), BROKEN, ids=[row[2] for row in BROKEN])
def test_checkpoint_of_another_make_is_refused_and_says_what_is_missing(
    load, name, payload, message
):
    with pytest.raises(InputError, match=message):
        load(name, payload).reset()


def test_missing_foreign_or_unexpected_weights_are_checkpoint_errors(load):
    for fields, message in [
        ({}, "not found"),
        ({"weights_uri": "https://example.org/a.pt"}, "local://artifacts/"),
        ({"weights_uri": "local://artifacts/../secret.pt"}, "secret"),
    ]:
        with pytest.raises(CheckpointError, match=message):
            load("frozen_mappo", **fields).reset()
    with pytest.raises(CheckpointError, match="expected weights with SHA-256 0000"):
        load("frozen_mappo", {"actor": mappo_state()}, weights_sha256="0" * 64).reset()


@pytest.mark.parametrize(
    ("name", "message"), [("frozen_mappo", "fc1 input dim"), ("frozen_harl", "input dim")]
)
def test_state_that_is_missing_or_of_another_length_is_refused(load, name, message):
    payload = {"actor": mappo_state() if name == "frozen_mappo" else harl_state()}
    partner = load(name, payload)
    with pytest.raises(ValueError, match=message):
        partner.act(obs_of(np.zeros(5)))
    with pytest.raises(ValueError, match=r"'arm'.*'state'"):
        partner.act(obs_of(STATE, uid="other"))


def test_changed_weight_is_found_at_reset_and_on_demand(load, monkeypatch):
    partner = load("frozen_harl", {"actor": harl_state()})
    actor = partner.read_actor({"actor": harl_state(), "activation_func": "relu"})
    monkeypatch.setattr(partner, "read_actor", lambda payload: actor)
    digest = partner.verify_weights()
    for _ in range(1000):
        partner.act(obs_of(STATE), deterministic=False)
    partner.reset(seed=1)
    assert partner.verify_weights() == digest
    assert not any(t.requires_grad for layer in actor.layers for t in layer.tensors.values())
    actor.layers[-1].tensors["bias"][0] += 1e-6
    with pytest.raises(IntegrityError, match=r"frozen weights.*ADR-009"):
        partner.reset()
    with pytest.raises(IntegrityError, match="frozen weights"):
        partner.verify_weights()


HARL_ARGS = {
    "hidden_sizes": [16, 12],
    "gain": 1.0,
    "initialization_method": "orthogonal_",
    "use_policy_active_masks": True,
    "use_naive_recurrent_policy": False,
    "use_recurrent_policy": False,
    "recurrent_n": 1,
    "activation_func": "relu",
    "final_activation_func": "tanh",
    "use_feature_normalization": True,
    "std_x_coef": 1.0,
    "std_y_coef": 0.5,
}
ARM, MOVES = Box(-np.ones(3, np.float32), np.float32([1, 2, 3])), Discrete(5)


def harl_policy(kind, space, **args):
    pytest.importorskip("harl", reason="needs the oracle extra")
    from harl.models import policy_models

    module = importlib.import_module(f"{policy_models.__name__}.{kind}_policy")
    name = "".join(word.title() for word in kind.split("_")) + "Policy"
    torch.manual_seed(4)
    policy = getattr(module, name)(HARL_ARGS | args, Box(-1, 1, (4,)), space)
    for parameter in policy.parameters():  # as a training leaves them: no bias is 0, no norm 1
        parameter.data.add_(0.3 * torch.randn_like(parameter))
    return policy


STATES = np.random.default_rng(5).normal(size=(40, 4)).astype(np.float32)


@pytest.mark.parametrize(
    ("kind", "space", "args", "options"),
    [
        ("stochastic", ARM, {}, {}),
        ("stochastic", ARM, {"activation_func": "tanh"}, {"activation_func": "tanh"}),
        ("stochastic", MOVES, {"activation_func": "selu"}, {"activation_func": "selu"}),
        ("stochastic", ARM, {"use_feature_normalization": False}, {}),
        ("stochastic", MOVES, {"use_feature_normalization": False}, {}),
        ("stochastic_mlp", MOVES, {"hidden_sizes": [7] * 5}, {}),
    ],
    ids=str,
)
def test_file_that_harl_wrote_plays_harls_actions(load, tmp_path, kind, space, args, options):
    policy = harl_policy(kind, space, **args)
    torch.save(policy.state_dict(), tmp_path / "actor.pt")  # as HARL's runner does
    with torch.no_grad():
        match kind:
            case "stochastic_mlp":
                wanted = policy(STATES, stochastic=False)
            case _:
                wanted, _, _ = policy(STATES, np.zeros((40, 1)), np.ones((40, 1)), None, True)
    partner = load("frozen_harl", extra={"uid": "arm", **options})
    np.testing.assert_allclose(partner.act(obs_of(STATES)), wanted.numpy(), rtol=2e-5, atol=2e-6)
    assert [path.name for path in tmp_path.iterdir()] == ["actor.pt"]


def test_file_without_a_word_on_its_activation_is_told_of_or_refused(load, tmp_path, caplog):
    torch.save(harl_state(), tmp_path / "actor.pt")
    load("frozen_harl").reset()
    assert "HARL's default, relu" in caplog.text
    metadata = CheckpointMetadata(run_id="r", seed=0, step=1, git_sha="g", pyproject_hash="p")
    save_checkpoint(
        state_dict={"actor": harl_state()},
        uri="local://actor.pt",
        metadata=metadata,
        artifacts_root=tmp_path,
    )
    with pytest.raises(CheckpointError, match=r"'activation_func'.*got neither"):
        load("frozen_harl").reset()
    load("frozen_harl", extra={"uid": "arm", "activation_func": "relu"}).reset()
    with pytest.raises(CheckpointError, match="got relu and tanh"):
        load(
            "frozen_harl",
            {"actor": harl_state()},
            extra={"uid": "arm", "activation_func": "tanh"},
        ).reset()


@pytest.mark.parametrize(
    ("kind", "space", "args", "options", "message"),
    [
        ("stochastic", ARM, {"use_recurrent_policy": True}, {}, "no recurrence.*rnn"),
        ("stochastic", MultiDiscrete([2, 3]), {}, {}, "several choices at once.*action_outs"),
        ("deterministic", ARM, {}, {}, "expected the weights of one Gaussian actor.*pi.mlp"),
        ("stochastic", ARM, {}, {"squash": "1,1"}, "two numbers 'LOW,HIGH', got '1,1'"),
        ("stochastic", ARM, {}, {"std_y_coef": "0"}, "'std_y_coef'.*expected a number in"),
        ("stochastic", ARM, {}, {"activation_func": "ReLU"}, "one of .*hardswish.*got ReLU"),
        ("stochastic", ARM, {}, {"final_activation_func": "tanh"}, "unknown option"),
    ],
    ids=str,
)
def test_actor_of_harl_that_cannot_be_played_as_trained_is_refused(
    load, tmp_path, kind, space, args, options, message
):
    torch.save(harl_policy(kind, space, **args).state_dict(), tmp_path / "actor.pt")
    with pytest.raises(CadenzaError, match=message):
        load("frozen_harl", extra={"uid": "arm", **options}).reset()


def test_choices_are_drawn_as_often_as_their_probabilities_say(load, tmp_path):
    policy = harl_policy("stochastic", MOVES)
    torch.save(policy.state_dict(), tmp_path / "actor.pt")
    partner = load("frozen_harl")
    partner.bind(MOVES)
    partner.reset(seed=1)
    drawn = partner.act(obs_of(np.repeat(STATES[:1], 4000, axis=0)), deterministic=False)
    with torch.no_grad():
        logits = policy.act.action_out.linear(policy.base(torch.tensor(STATES[:1])))
    wanted = torch.softmax(logits, dim=-1)[0].numpy()
    shares = np.bincount(drawn[:, 0].astype(int), minlength=5) / 4000
    np.testing.assert_allclose(shares, wanted, atol=0.03)
    for space in (ARM, Discrete(4), Discrete(5, start=1)):
        with pytest.raises(InputError, match="expected an actor for"):
            partner.bind(space)


def test_mappo_actor_of_another_library_plays_as_the_options_say(load, tmp_path, caplog):
    w = {name: tensor.numpy().astype(np.float64) for name, tensor in mappo_state().items()}
    hidden = np.maximum(w["fc1.weight"] @ STATE + w["fc1.bias"], 0.0)
    hidden = np.maximum(w["fc2.weight"] @ hidden + w["fc2.bias"], 0.0)
    output = w["head.weight"] @ hidden + w["head.bias"]
    torch.save(mappo_state(), tmp_path / "actor.pt")
    options = {"uid": "arm", "activation_func": "relu", "squash": "-1,3"}
    partner = load("frozen_mappo", extra=options)
    wanted = 1.0 + 2.0 * np.tanh(output)
    np.testing.assert_allclose(partner.act(obs_of(STATE)), wanted, rtol=1e-5, atol=1e-6)
    assert not caplog.text
    load("frozen_mappo").reset()
    assert "it uses tanh." in caplog.text


def test_identity_covers_the_bytes_of_a_file_that_nobody_sealed(load, tmp_path):
    identities = []
    for scale in (1.0, 2.0):
        torch.save({k: scale * v for k, v in harl_state().items()}, tmp_path / "actor.pt")
        spec = load("frozen_harl").spec
        digest = sha256((tmp_path / "actor.pt").read_bytes()).hexdigest()
        assert spec.content_id == dataclasses.replace(spec, weights_sha256=digest).content_id
        identities.append(spec.content_id)
    assert len(set(identities)) == 2
    with pytest.raises(CheckpointError, match="expected weights with SHA-256 0000"):
        load("frozen_harl", weights_sha256="0" * 64).reset()
