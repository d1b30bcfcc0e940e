"""A member of a zoo as a partner: what it plays, and what it refuses."""

import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from cadenza.core.errors import CheckpointError, ConfigurationError, InputError, IntegrityError
from cadenza.partners.registry import load_partner
from cadenza.partners.spec import PartnerSpec
from cadenza.partners.zoo_manifest import MANIFEST_NAME
from cadenza.partners.zoo_member import MemberPolicies, load_member
from tests.zoo_samples import made

NAME = "fcp-s0-0-final"


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("zoo")
    made(folder, population=1)
    return folder


def partner(zoo, name=NAME, **extra):
    address = f"local://{zoo.name}/members/{name}.pt"
    return load_partner(
        PartnerSpec("zoo_member", 0, 240, address, extra={"root": str(zoo.parent), **extra})
    )


def observed(states):
    return {"agent": {"partner": {"state": states}}}


STATES = np.random.default_rng(0).normal(size=(5, 10)).astype(np.float32)


def test_member_plays_its_own_policy_row_by_row(zoo):
    member = partner(zoo)
    member.reset(seed=0)
    rows = member.act(observed(STATES))
    expected = load_member(zoo, NAME).partner.act(STATES)
    assert rows == pytest.approx(expected, abs=1e-6)
    assert member.act(observed(STATES[2])).tobytes() == rows[2].tobytes()


def test_drawn_actions_repeat_with_the_seed_and_differ_between_rows(zoo):
    same = np.tile(STATES[:1], (3, 1))
    first, second = partner(zoo), partner(zoo)
    first.reset(seed=4)
    second.reset(seed=4)
    drawn = first.act(observed(same), deterministic=False)
    assert drawn.tobytes() == second.act(observed(same), deterministic=False).tobytes()
    assert len({row.tobytes() for row in drawn}) == 3
    second.reset(seed=0)
    second.reset_row(2, seed=4)
    again = second.act(observed(same), deterministic=False)
    assert again[2].tobytes() == drawn[0].tobytes()  # as a scalar partner after reset(seed=4)


def test_drawn_actions_spread_as_the_policy_says(zoo, monkeypatch):
    ego, own = load_member(zoo, NAME)
    narrow = torch.full_like(own.output.log_std, math.log(0.01))  # far from 1 and from the bounds
    loaded = MemberPolicies(ego, replace(own, output=replace(own.output, log_std=narrow)))
    monkeypatch.setattr("cadenza.partners.zoo_member.load_member", lambda *_: loaded)
    member = partner(zoo)
    member.reset(seed=4)
    drawn = member.act(observed(np.zeros((400, 10), np.float32)), deterministic=False)
    assert drawn.std(axis=0) == pytest.approx(0.01, rel=0.15)


def test_member_offers_nothing_that_trains(zoo):
    member = partner(zoo)
    with pytest.raises(AttributeError, match="ADR-009"):
        member.train  # noqa: B018 - the lookup is the test


@pytest.mark.parametrize(
    "part", [lambda policy: policy.layers[-1].tensors["bias"], lambda policy: policy.output.high]
)
def test_what_it_plays_with_changed_in_memory_is_noticed(zoo, part, monkeypatch):
    member = partner(zoo)
    network = member.read_network()
    monkeypatch.setattr(member, "read_network", lambda: network)
    member.reset(seed=0)
    part(network)[0] += 1.0
    with pytest.raises(IntegrityError, match="something changed them"):
        member.verify_weights()
    with pytest.raises(IntegrityError, match="something changed them"):
        member.reset(seed=1)


def test_member_that_a_plan_knows_by_other_weights_is_refused(zoo):
    spec = replace(partner(zoo).spec, weights_sha256="0" * 64)
    with pytest.raises(CheckpointError, match="expected weights with SHA-256 0000"):
        load_partner(spec).reset(seed=0)


def test_member_with_other_weights_than_the_manifest_names_is_refused(zoo, tmp_path):
    copy = tmp_path / "zoo"
    shutil.copytree(zoo, copy)
    for suffix in (".pt", ".pt.json"):
        shutil.copyfile(copy / f"members/fcp-s0-0-init{suffix}", copy / f"members/{NAME}{suffix}")
    with pytest.raises(IntegrityError, match=f"zoo member '{NAME}' of .* its manifest names"):
        partner(copy).reset(seed=0)


def test_changed_manifest_is_refused(zoo, tmp_path):
    copy = tmp_path / "zoo"
    shutil.copytree(zoo, copy)
    text = (copy / MANIFEST_NAME).read_text()
    (copy / MANIFEST_NAME).write_text(text.replace('"held_out"', '"public"').replace("240", "241"))
    with pytest.raises(IntegrityError, match="its seal covers"):
        partner(copy).reset(seed=0)


@pytest.mark.parametrize(
    ("spec", "kind", "told"),
    [
        (PartnerSpec("zoo_member", 0), ConfigurationError, "weights_uri"),
        (PartnerSpec("zoo_member", 0, 1, "local://x.pt"), ConfigurationError, "<zoo>/members"),
        (
            PartnerSpec("zoo_member", 0, 1, "local://../z/members/x.pt"),
            ConfigurationError,
            "<zoo>/members",
        ),
        (
            PartnerSpec("zoo_member", 0, 1, "local://z/members/x.pt", extra={"gain": "1"}),
            ConfigurationError,
            "unknown option 'gain'",
        ),
    ],
)
def test_malformed_spec_is_refused(spec, kind, told):
    with pytest.raises(kind, match=told):
        load_partner(spec)


def test_missing_zoo_and_foreign_state_are_told(zoo):
    with pytest.raises(
        (IntegrityError, CheckpointError), match="expected a zoo, got no such folder"
    ):
        load_partner(PartnerSpec("zoo_member", 0, 1, "local://no/members/x.pt")).reset()
    with pytest.raises(InputError, match=r"length 10 .*, got 3"):
        partner(zoo).act(observed(STATES[:, :3]))
