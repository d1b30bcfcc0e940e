"""The shield, the action guard and the episode streams of `PartnerBase`."""

import numpy as np
import pytest

from cadenza.core.errors import InputError
from cadenza.core.seeding import derive_substream
from cadenza.partners.interface import _FORBIDDEN_ATTRS, FrozenPartner, PartnerBase
from cadenza.partners.spec import PartnerSpec

SPEC = PartnerSpec("plain", 0)


class Plain(PartnerBase):
    """Returns one given action."""

    def __init__(self, spec, action=(0.25, -0.25)):
        super().__init__(spec)
        self.action = np.array(action, dtype=np.float32)

    def reset(self, *, seed=None):
        pass

    def act(self, obs, *, deterministic=True):
        return self.checked(self.action)


class Box:
    shape = (2,)
    low = np.array([-0.5, -0.1])
    high = np.array([0.5, 0.1])


def test_forbidden_names_are_the_eight_of_the_contract():
    assert {
        "train",
        "learn",
        "update",
        "update_params",
        "fit",
        "set_weights",
        "load_state_dict",
        "named_parameters",
    } == _FORBIDDEN_ATTRS


@pytest.mark.parametrize("name", sorted(_FORBIDDEN_ATTRS))
def test_forbidden_name_cannot_be_attached_to_an_instance_or_defined_in_a_subclass(name):
    partner = Plain(SPEC)
    with pytest.raises(AttributeError, match=rf"Plain\.{name}.*ADR-009"):
        setattr(partner, name, lambda: None)
    with pytest.raises(TypeError, match=rf"Learner\.{name}.*ADR-009"):
        type("Learner", (PartnerBase,), {name: lambda _self: None})


def test_subclass_that_inherits_a_forbidden_name_from_a_mixin_is_refused():
    class Mixin:
        def fit(self):
            pass

    with pytest.raises(TypeError, match=r"Sneaky\.fit.*ADR-009"):
        type("Sneaky", (PartnerBase, Mixin), {})


def test_partner_base_subclass_satisfies_the_protocol_and_keeps_its_spec():
    partner = Plain(SPEC)
    assert isinstance(partner, FrozenPartner)
    assert partner.spec is SPEC
    with pytest.raises(AttributeError, match="spec"):
        partner.spec = PartnerSpec("other", 0)


def test_bound_partner_clips_each_component_to_the_box():
    partner = Plain(SPEC, (9.0, -9.0))
    partner.bind(Box())
    action = partner.act({})
    assert action.dtype == np.float32
    assert action.tolist() == [0.5, np.float32(-0.1)]


LENGTH = "Plain: expected actions of length 2, got shape"
FINITE = r"Plain action: expected finite numbers.*index \(1,\)"


@pytest.mark.parametrize(
    ("action", "message"),
    [
        *((action, LENGTH) for action in [(1.0,), (1.0, 2.0, 3.0), [(1.0,), (2.0,)]]),
        *(((0.0, bad), FINITE) for bad in (np.nan, np.inf)),
    ],
)
def test_bound_partner_with_a_malformed_action_is_an_error(action, message):
    partner = Plain(SPEC, action)
    partner.bind(Box())
    with pytest.raises(InputError, match=message):
        partner.act({})


def test_episode_stream_is_named_after_the_partner_and_the_seed():
    stream = Plain(SPEC).episode_stream(7)
    assert stream == derive_substream(f"partner.{SPEC.partner_id}.episode", root_seed=7)


def test_episode_streams_without_seed_differ_and_repeat_from_partner_to_partner():
    first, second = Plain(SPEC), Plain(SPEC)
    streams = [first.episode_stream(None) for _ in range(3)]
    assert len(set(streams)) == 3
    assert streams == [second.episode_stream(None) for _ in range(3)]
    assert Plain(PartnerSpec("plain", 1)).episode_stream(None) not in streams
