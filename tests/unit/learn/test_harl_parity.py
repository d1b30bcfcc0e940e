"""Our actor step against HARL's: a recorded one everywhere, a live one where it is installed."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from cadenza.learn.agents.happo import ActorBatch, actor_optimizer, update_actor
from cadenza.learn.nn.gaussian_actor import GaussianActor
from tools import record_harl_update as recorder

FIXTURE = Path(__file__).parents[2] / "data" / "harl" / "actor_updates.safetensors"
BATCH_FIELDS = ("observations", "actions", "old_log_probs", "advantages")
RESULT_FIELDS = ("policy_loss", "entropy", "gradient_norm", "ratio")
#: Allowed difference on a machine whose kernels round unlike the recording one's.
OTHER_KERNEL_TOLERANCE = 2e-6


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def recording():
    return load_file(FIXTURE)


@pytest.fixture(scope="module")
def same_kernels(recording):
    """Whether plain torch gives the recorded bits here, so that ours must as well."""
    probe = recorder.arithmetic_probe()
    return all(torch.equal(probe[name], recording[name]) for name in probe)


def part(recording, prefix):
    return {
        name.removeprefix(prefix): value
        for name, value in recording.items()
        if name.startswith(prefix)
    }


def assert_same(mine, theirs, *, exact, what):
    if exact:
        assert torch.equal(mine, theirs), f"{what} differs by {(mine - theirs).abs().max()}"
    else:
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=OTHER_KERNEL_TOLERANCE)


def run_updates(actor, optimizer, batches):
    for batch in batches:
        yield update_actor(
            actor,
            optimizer,
            ActorBatch(**{field: batch[field] for field in BATCH_FIELDS}),
            clip_epsilon=0.2,
        )


def test_fixture_is_small_and_names_its_source():
    assert FIXTURE.stat().st_size < 300_000
    with safe_open(FIXTURE, framework="pt") as file:
        facts = json.loads(file.metadata()["facts"])
    assert facts["harl-aht"] == "0.1.0"
    assert facts["arguments"] == recorder.harl_arguments(recorder.HIDDEN_DIM)
    assert set(facts["cases"]) == set(recorder.CASES)


@pytest.mark.parametrize("case", sorted(recorder.CASES))
def test_recorded_harl_updates_are_reproduced(recording, same_kernels, case):
    actor = GaussianActor.from_state_dict(part(recording, f"{case}/before/"))
    optimizer = actor_optimizer(actor.parameters(), 3e-4)
    batches = [part(recording, f"{case}/batch/{k}/") for k in range(recorder.UPDATES)]
    for k, update in enumerate(run_updates(actor, optimizer, batches)):
        for field in RESULT_FIELDS:
            theirs = recording[f"{case}/result/{k}/{field}"]
            assert_same(getattr(update, field), theirs, exact=same_kernels, what=f"{field} of {k}")
    after = part(recording, f"{case}/after/")
    assert set(actor.state_dict()) == set(after)
    for name, value in actor.state_dict().items():
        assert_same(value, after[name], exact=same_kernels, what=name)
        assert not torch.equal(value, recording[f"{case}/before/{name}"])
    for index, state in optimizer.state_dict()["state"].items():
        for name, value in state.items():
            theirs = recording[f"{case}/adam/{index}/{name}"]
            assert_same(value, theirs, exact=same_kernels, what=f"adam {index} {name}")


def test_recorded_cases_clip_and_do_not_clip(recording):
    norms = {
        case: [
            float(recording[f"{case}/result/{k}/gradient_norm"]) for k in range(recorder.UPDATES)
        ]
        for case in recorder.CASES
    }
    assert min(norms["gradient_clipped"]) > 10.0
    assert max(norms["gradient_within_limit"]) < 10.0
    ratios = recording["gradient_within_limit/result/0/ratio"]
    assert float(ratios.min()) < 0.8  # the clip range is engaged on both sides
    assert float(ratios.max()) > 1.2


@pytest.mark.parametrize("case", sorted(recorder.CASES))
@pytest.mark.parametrize("sizes", [(10, 2, 64), (14, 7, 32), (3, 1, 16)])
def test_live_harl_updates_are_reproduced(case, sizes):
    pytest.importorskip("harl", reason="needs the oracle extra")
    observation_dim, action_dim, hidden = sizes
    happo = recorder.build_harl_actor(5, observation_dim, action_dim, hidden)
    actor = GaussianActor(
        observation_dim,
        action_dim,
        hidden_sizes=(hidden, hidden),
        generator=torch.Generator().manual_seed(5),
    )
    for mine, theirs in zip(actor.parameters(), happo.actor.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    optimizer = actor_optimizer(actor.parameters(), 3e-4)
    batches = recorder.minibatches(happo, recorder.CASES[case], observation_dim, action_dim)
    for batch, mine in zip(batches, run_updates(actor, optimizer, batches), strict=True):
        theirs = recorder.harl_update(happo, batch)
        for field in RESULT_FIELDS:
            assert torch.equal(getattr(mine, field), theirs[field]), field
    theirs = happo.actor.state_dict()
    for name, value in actor.state_dict().items():
        assert torch.equal(value, theirs[name]), name


def test_state_dicts_are_interchangeable_with_live_harl():
    pytest.importorskip("harl", reason="needs the oracle extra")
    happo = recorder.build_harl_actor(7, 10, 2, 64)
    actor = GaussianActor(10, 2, hidden_sizes=(64, 64), generator=torch.Generator().manual_seed(8))
    ours = {name: value.clone() for name, value in actor.state_dict().items()}
    theirs = {name: value.clone() for name, value in happo.actor.state_dict().items()}
    assert list(ours) == list(theirs)
    actor.load_state_dict(theirs, strict=True)
    happo.actor.load_state_dict(ours, strict=True)
    x = torch.randn((5, 10), generator=torch.Generator().manual_seed(1))
    actions, _, _ = happo.get_actions(x, *recorder.harl_extras(x)[::2], deterministic=True)
    expected = GaussianActor.from_state_dict(ours)(x)
    assert torch.equal(actions, expected)
    assert torch.equal(actor.state_dict()["base.mlp.fc.0.weight"], theirs["base.mlp.fc.0.weight"])


def test_exponential_of_summed_log_ratios_would_be_caught(recording, same_kernels):
    if not same_kernels:
        pytest.skip("this machine rounds unlike the recording one")
    actor = GaussianActor.from_state_dict(part(recording, "gradient_clipped/before/"))
    batch = part(recording, "gradient_clipped/batch/0/")
    mean, deviation = actor(batch["observations"]), actor.standard_deviation()
    log_probs = torch.distributions.Normal(mean, deviation).log_prob(batch["actions"])
    mutant = torch.exp((log_probs - batch["old_log_probs"]).sum(-1, keepdim=True))
    recorded = recording["gradient_clipped/result/0/ratio"]
    assert not torch.equal(mutant, recorded)
    torch.testing.assert_close(mutant, recorded, rtol=1e-6, atol=0.0)
