import pytest

from cadenza.core.errors import InputError
from cadenza.partners.zoo_manifest import compute_split


def test_split_makes_the_first_seventy_percent_public_rounded_up():
    # ceil(0.7 * 11) = 8 public and 3 held out, in ascending order of the ids.
    split = compute_split(f"id{k:02d}" for k in reversed(range(11)))
    assert [name for name, kind in split.items() if kind == "held_out"] == ["id08", "id09", "id10"]


def test_split_of_repeated_ids_is_refused():
    with pytest.raises(InputError, match="distinct ids"):
        compute_split(["a", "a"])
