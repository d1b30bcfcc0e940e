"""Identity of partners: hashes, coercion, refusal of malformed fields."""

import dataclasses
import hashlib

import numpy as np
import pytest

from cadenza.core.errors import InputError
from cadenza.partners.spec import PartnerSpec

DIGEST = "0" * 63 + "a"


def spec(**changes):
    fields = {"class_name": "a", "seed": 0, "checkpoint_step": None, "weights_uri": None}
    return PartnerSpec(**{**fields, **changes})


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (("a", 0, None, None), "92d22212e147272d"),
        (("scripted_heuristic", 0, None, None), "73250184e1abaccc"),
        (
            ("frozen_mappo", 42, 100_000, "local://artifacts/mappo_seed42_step100k.pt"),
            "4c58205caa5a23ab",
        ),
        (
            ("frozen_harl", 7, 50_000, "local://artifacts/happo_seed7_step50k.pt"),
            "6f8ad68686328705",
        ),
    ],
)
def test_partner_id_of_published_specs_has_the_published_value(fields, expected):
    assert PartnerSpec(*fields).partner_id == expected


def test_partner_id_ignores_extra_and_weights_digest():
    assert spec(extra={"uid": "fetch"}).partner_id == spec().partner_id
    with_digest = spec(weights_uri="local://artifacts/x.pt", weights_sha256=DIGEST)
    assert with_digest.partner_id == spec(weights_uri="local://artifacts/x.pt").partner_id


@pytest.mark.parametrize("seed", [np.int64(0), np.uint8(0)])
def test_spec_from_numpy_integers_keeps_the_plain_id(seed):
    made = spec(class_name=np.str_("a"), seed=seed)
    assert made.partner_id == "92d22212e147272d"
    assert type(made.seed) is int
    assert type(made.class_name) is str


def test_content_id_is_the_hash_of_the_canonical_json():
    material = (
        '{"checkpoint_step":3,"class_name":"a","extra":{"gain":"2","uid":"x"},"seed":1,'
        f'"weights_sha256":"{DIGEST}","weights_uri":"u"}}'
    )
    made = PartnerSpec("a", 1, 3, "u", {"uid": "x", "gain": "2"}, DIGEST)
    assert made.content_id == hashlib.sha256(material.encode()).hexdigest()


@pytest.mark.parametrize(
    "changes",
    [
        {"extra": {"target_xy": "1.0,0.0"}},
        {"weights_sha256": DIGEST},
        {"seed": 1},
        {"class_name": "b"},
        {"checkpoint_step": 0},
        {"weights_uri": "u"},
    ],
)
def test_content_id_changes_with_every_field(changes):
    assert spec(**changes).content_id != spec().content_id


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({}, "a"),
        ({"extra": {"uid": "partner", "task": "t"}}, "a"),
        ({"extra": {"uid": "ego", "gain": "2.0", "speed": "1"}}, "a(gain=2.0, speed=1)"),
        ({"weights_uri": "local://z/members/s0.pt", "weights_sha256": DIGEST}, f"s0@{DIGEST}"),
        ({"weights_uri": "local://members/s0.pt", "weights_sha256": DIGEST}, f"s0@{DIGEST}"),
        ({"weights_uri": "local://none/s0.pt"}, "s0@None"),
    ],
)
def test_partner_is_known_as_the_same_wherever_it_sits_and_lies(fields, name):
    assert spec(**fields).known_as == name


def test_extra_cannot_be_edited_from_either_side():
    given = {"uid": "x"}
    made = spec(extra=given)
    given["uid"] = "changed"
    assert made.extra == {"uid": "x"}
    with pytest.raises(TypeError, match="does not support item assignment"):
        made.extra["uid"] = "y"
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.seed = 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": True}, r"seed: expected an integer, got True of type bool"),
        ({"seed": 1.0}, r"seed: expected an integer, got 1.0"),
        ({"seed": -1}, r"seed: expected an integer >= 0, got -1"),
        ({"checkpoint_step": -5}, r"checkpoint_step: expected an integer >= 0"),
        ({"class_name": ""}, r"class_name: expected non-empty text, got ''"),
        ({"weights_uri": ""}, r"weights_uri: expected non-empty text"),
        ({"extra": [("a", "b")]}, r"extra: expected a mapping, got list"),
        ({"extra": {"gain": 2.0}}, r"extra\['gain'\]: expected text to text, got 2.0"),
        ({"weights_sha256": "ABC"}, r"weights_sha256: expected 64 lower-case hex"),
    ],
)
def test_spec_with_malformed_field_is_refused(changes, message):
    with pytest.raises(InputError, match=message):
        spec(**changes)
