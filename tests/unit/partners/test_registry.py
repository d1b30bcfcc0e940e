"""Registering, loading and listing partner classes."""

import pytest

from cadenza.core.errors import InputError, UnknownNameError
from cadenza.partners.interface import PartnerBase, PartnerCard
from cadenza.partners.registry import (
    cards,
    isolated_registry,
    list_registered,
    load_partner,
    partner_card,
    register_partner,
)
from cadenza.partners.spec import PartnerSpec


class Quiet(PartnerBase):
    """Does nothing at all.

    A second paragraph that listings leave out.
    """

    def reset(self, *, seed=None):
        pass

    def act(self, obs, *, deterministic=True):
        return obs


@pytest.fixture(autouse=True)
def _isolated():
    with isolated_registry():
        yield


def test_registered_class_is_returned_unchanged_and_built_from_its_spec():
    assert register_partner("quiet")(Quiet) is Quiet
    spec = PartnerSpec("quiet", 3)
    partner = load_partner(spec)
    assert type(partner) is Quiet
    assert partner.spec is spec
    assert load_partner(spec) is not partner


def test_registering_a_name_twice_or_none_is_an_error_that_names_the_owner():
    register_partner("quiet")(Quiet)
    with pytest.raises(ValueError, match=r"'quiet' is already registered, by .*Quiet"):
        register_partner("quiet")
    with pytest.raises(InputError, match="expected a non-empty name"):
        register_partner("")


def test_loading_an_unknown_name_lists_the_known_names_sorted():
    with pytest.raises(KeyError, match="crossing_chaser, crossing_goal_seeker") as caught:
        load_partner(PartnerSpec("nobody", 0))
    assert isinstance(caught.value, UnknownNameError)
    assert "'nobody'" in str(caught.value)


def test_isolated_registry_forgets_what_was_registered_inside():
    with isolated_registry():
        register_partner("quiet")(Quiet)
        assert "quiet" in list_registered()
    assert "quiet" not in list_registered()


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ({"act": None}, r"Odd: expected a method act\("),
        ({"reset": lambda _self: None}, r"Odd\.reset: expected to accept \(self, seed=\)"),
        ({"reset": lambda _self, *, seed: None}, r"Odd\.reset: expected to accept \(self\)"),
        ({"act": lambda _self, _obs: None}, r"Odd\.act: expected to accept \(self, dict, determin"),
        ({"act": lambda _self, _obs, *, deterministic: None}, r"Odd\.act: expected to accept \(se"),
        ({"__init__": lambda _self, _spec, _more: None}, r"Odd\.__init__: expected to accept \(se"),
    ],
)
def test_class_with_another_signature_is_refused_at_registration(methods, message):
    odd = type("Odd", (Quiet,), methods)
    with pytest.raises(TypeError, match=message):
        register_partner("odd")(odd)
    assert "odd" not in list_registered()


def test_foreign_class_that_offers_training_is_refused_at_registration():
    class Foreign:
        def __init__(self, spec):
            self.spec = spec

        def reset(self, *, seed=None):
            pass

        def act(self, obs, *, deterministic=True):
            return obs

        def learn(self):
            pass

    with pytest.raises(TypeError, match=r"Foreign\.learn.*ADR-009"):
        register_partner("foreign")(Foreign)


def test_card_of_a_class_without_one_is_its_first_docstring_line():
    register_partner("quiet")(Quiet)
    assert partner_card("quiet") == PartnerCard(summary="Does nothing at all.")


def test_cards_say_who_leaves_a_way():
    known = cards()
    assert list(known) == list_registered()
    assert {name for name, card in known.items() if not card.leaves_way} == {"crossing_chaser"}
    assert known["crossing_wanderer"].tasks == ("crossing",)
    assert "max_speed" in known["crossing_wanderer"].options
