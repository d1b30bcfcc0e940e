"""Suggestions for a name that is refused: the name that was meant, and never the name itself."""

import pytest

from cadenza.core.errors import did_you_mean, nearest_name
from cadenza.loop.backends.base import make_backend
from cadenza.loop.config import LoopConfig


@pytest.mark.parametrize(
    ("given", "near"),
    [
        ("crosing", "crossing"),
        ("Crossing", "crossing"),
        (" crossing\n", "crossing"),
        ("PARTNER_A", "Partner_a"),
        ("crossing", None),  # known, and refused for another reason
        ("", None),
        ("foraging", None),
    ],
)
def test_suggestion_forgives_case_and_spaces_and_is_never_the_given_name(given, near):
    known = ("crossing", "crossings", "Partner_a")
    assert nearest_name(given, iter(known)) == near
    assert did_you_mean(given, known) == ("" if near is None else f" (did you mean {near!r}?)")


@pytest.mark.parametrize("text", ["leaving_way,brake", "default,leaving_way", "leaving_way,"])
def test_group_of_partners_among_names_is_told_to_stand_alone(text):
    document = {"run_name": "a", "seed_dataset": "local/a", "data": {"initial_episodes": 4}}
    document["eval"] = {"task_suite": text}
    with pytest.raises(ValueError, match=r"eval\.task_suite: expected ") as caught:
        make_backend(LoopConfig.from_document(document, source="test"))
    assert "alone, or partners with commas" in str(caught.value)
    assert "did you mean" not in str(caught.value)
