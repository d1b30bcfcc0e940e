"""Files that emote-rl 23.0.0 wrote (tests/data/emote/write_files.py), read here."""

import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import optim

from cadenza.core.errors import CheckpointError, ConfigurationError, IntegrityError
from cadenza.core.spaces import BoxSpace, DictSpace, MDPSpace
from cadenza.learn.algorithms.sac import PolicyLoss, QLoss
from cadenza.learn.emote_files import emote_weights, read_emote_checkpoint
from cadenza.learn.memory.builder import DictObsMemoryTable
from cadenza.learn.nn import ActionValueMlp, GaussianMlpPolicy
from cadenza.learn.nn.layers import Conv2dEncoder

FILES = Path(__file__).parents[2] / "data" / "emote"
LENGTHS = (4, 7, 5)
EXPECTED = np.load(FILES / "expected.npz")
OBS, ACTIONS = torch.from_numpy(EXPECTED["obs"]), torch.from_numpy(EXPECTED["act"])


@pytest.fixture
def table():
    spaces = MDPSpace(
        rewards=BoxSpace(np.float32, (1,)),
        actions=BoxSpace(np.float32, (2,)),
        state=DictSpace({"obs": BoxSpace(np.float32, (3,))}),
    )
    return DictObsMemoryTable(spaces=spaces, maxlen=100, device="cpu")


def test_memory_is_read_with_every_row(table):
    assert table.restore(FILES / "memory", allow_pickle=True)
    assert table.size() == sum(LENGTHS)
    assert sorted(table.identities()) == [-3, -2, -1]
    drawn = table.sample(2000, 1)
    assert set(drawn["rewards"].flatten().tolist()) == {0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0}
    rng = np.random.default_rng(0)
    first = rng.normal(size=(LENGTHS[0] + 1, 3)).astype(np.float32)
    found = drawn["observation"]["obs"].numpy().reshape(-1, 3)
    assert {tuple(row) for row in first[:-1]} <= {tuple(row) for row in found}


def test_memory_is_a_pickle_and_must_be_allowed(table):
    with pytest.raises(ConfigurationError, match="pass allow_pickle=True if you trust it"):
        table.restore(FILES / "memory")


def test_memory_that_names_code_is_refused(table, tmp_path):
    with (
        zipfile.ZipFile(FILES / "memory.zip") as old,
        zipfile.ZipFile(tmp_path / "memory.zip", "w") as new,
    ):
        for name in old.namelist():
            data = old.read(name)
            if name == "obs.npy":
                data = data[:128] + b"cos\nsystem\n(S'true'\ntR."
            new.writestr(name, data)
    with pytest.raises(IntegrityError, match=r"os\.system is not plain data"):
        table.restore(tmp_path / "memory", allow_pickle=True)
    assert table.size() == 0


def test_networks_of_a_checkpoint_say_the_same():
    weights = read_emote_checkpoint(FILES / "sac.0.tar")["network_state_dicts"]
    policy, q1, q2 = GaussianMlpPolicy(3, 2, [8, 8]), *(ActionValueMlp(3, 2, [8, 8]) for _ in "12")
    for network, state in zip((policy, q1, q2), weights, strict=True):
        network.load_state_dict(state)
    policy.eval()
    with torch.no_grad():
        said = {
            "pi": policy(OBS, torch.zeros(16, 2)),
            "q1": q1(ACTIONS, OBS),
            "q2": q2(ACTIONS, OBS),
        }
    for name, value in said.items():
        np.testing.assert_allclose(value, EXPECTED[name], rtol=1e-5, atol=1e-6)


def test_losses_of_a_checkpoint_go_on_with_their_optimisers():
    states = read_emote_checkpoint(FILES / "sac.0.tar")["callback_state_dicts"]
    q1, policy = ActionValueMlp(3, 2, [8, 8]), GaussianMlpPolicy(3, 2, [8, 8])
    q_loss = QLoss(name="q1", q=q1, opt=optim.Adam(q1.parameters(), 8e-3))
    policy_loss = PolicyLoss(
        pi=policy, ln_alpha=torch.zeros(1), q=q1, opt=optim.Adam(policy.parameters(), 8e-3)
    )
    q_loss.load_state_dict(states[0], load_hparams=False)
    policy_loss.load_state_dict(states[2], load_hparams=False)
    for loss in (q_loss, policy_loss):
        steps = {float(state["step"]) for state in loss.optimizer.state.values()}
        assert steps == {3.0}
    np.testing.assert_allclose(q1(ACTIONS, OBS).detach(), EXPECTED["q1"], rtol=1e-5, atol=1e-6)


def test_convolutions_are_read():
    encoder = Conv2dEncoder((8, 8, 1), [2, 3], [3, 3], [1, 1], [0, 0], flatten=False)
    encoder.load_state_dict(read_emote_checkpoint(FILES / "conv.tar"))
    said = encoder(torch.from_numpy(EXPECTED["img"])).detach()
    np.testing.assert_allclose(said.reshape(2, -1), EXPECTED["conv"].reshape(2, -1), rtol=1e-5)


def test_layers_of_ensembles_and_shared_encoders_get_our_names_and_ours_keep_theirs():
    theirs = ["hidden_layers.0.0.weight", "hidden_layers.1.0.bias", "mean_and_logvar.weight"]
    ours = ["hidden_layers.0.weight", "hidden_layers.2.bias", "mean_and_logvar.weight"]
    assert list(emote_weights(dict.fromkeys(theirs))) == ours
    assert list(emote_weights(dict.fromkeys(ours))) == ours
    shared = [
        "shared_enc._layers.2.weight", "action_value_mlp.encoder.1.0.weight",
        "action_value_mlp.encoder.0.0.weight", "action_value_mlp.final_layer.weight",
    ]  # fmt: skip
    assert list(emote_weights(dict.fromkeys(shared))) == [
        "shared_enc.layers.2.weight", "action_value_mlp.q.2.weight",
        "action_value_mlp.q.0.weight", "action_value_mlp.q.4.weight",
    ]  # fmt: skip


def test_damaged_checkpoint_is_refused(tmp_path):
    (tmp_path / "sac.tar").write_bytes((FILES / "sac.0.tar").read_bytes()[:-200])
    with pytest.raises(CheckpointError, match=r"sac\.tar"):
        read_emote_checkpoint(tmp_path / "sac.tar")
