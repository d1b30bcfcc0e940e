"""Nothing can happen to the bytes of a bundle unseen: every flip, cut, swap, file more or less."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.benchmark.bundle import build_bundle_files
from cadenza.benchmark.signing import (
    SIGNATURE_NAME,
    merkle_root,
    sign_statement,
    signature_checks,
    statement_of,
)
from cadenza.benchmark.verify import all_ok, sums_checks
from cadenza.core.errors import IntegrityError
from cadenza.evaluation.results import ResultBundle
from cadenza.evaluation.summary import SummarySettings
from tests.campaigns import size
from tests.unit.benchmark.samples import make_key, make_plan, make_request


def small_request():
    """One policy, partner, condition and seed, two episodes: 6 kB."""
    whole = make_plan()
    plan = make_plan(
        policies=whole.policies[:1],
        partners=whole.partners[:1],
        conditions=whole.conditions[1:],
        seeds=(0,),
        episodes_per_seed=2,
    )
    return make_request(plan, settings=SummarySettings())


FILES = build_bundle_files(small_request())
BUNDLE = ResultBundle.model_validate_json(FILES["bundle.json"])


@pytest.fixture(scope="module")
def signed(tmp_path_factory):
    pytest.importorskip("cryptography")
    key = tmp_path_factory.mktemp("keys") / "key"
    make_key(key)
    return FILES | {SIGNATURE_NAME: sign_statement(statement_of(BUNDLE, FILES), key)}


@pytest.mark.parametrize("name", sorted(FILES))
def test_every_flipped_bit_and_every_truncation_of_every_file_is_found(name):
    assert all_ok(list(sums_checks(FILES)))
    for position, byte in enumerate(FILES[name]):
        for bit in range(8) if size(False, True) else (position % 8,):
            changed = bytearray(FILES[name])
            changed[position] = byte ^ 1 << bit
            assert not all_ok(list(sums_checks(FILES | {name: bytes(changed)})))
        assert not all_ok(list(sums_checks(FILES | {name: FILES[name][:position]})))


def signature_holds(files):
    try:
        return all_ok(list(signature_checks(BUNDLE, files, signers=None, required=False)))
    except IntegrityError:
        return False


def test_every_flipped_bit_of_the_signature_is_found(signed):
    assert signature_holds(signed)
    data = signed[SIGNATURE_NAME]
    for position, byte in enumerate(data):
        for bit in range(8):
            changed = bytearray(data)
            changed[position] = byte ^ 1 << bit
            assert not signature_holds(signed | {SIGNATURE_NAME: bytes(changed)})
    for length in range(len(data)):
        assert not signature_holds(signed | {SIGNATURE_NAME: data[:length]})


@pytest.mark.parametrize("name", sorted(FILES))
def test_signature_covers_every_file(signed, name):
    assert not signature_holds(signed | {name: signed[name] + b"\n"})
    assert not signature_holds({k: v for k, v in signed.items() if k != name})
    assert not signature_holds(signed | {"more.txt": b""})


@pytest.mark.parametrize("name", sorted(FILES))
def test_added_removed_swapped_and_emptied_files_are_found(name):
    other = next(k for k in sorted(FILES) if k != name)
    for files in (
        FILES | {name + ".bak": FILES[name]},
        {k: v for k, v in FILES.items() if k != name},
        FILES | {name: FILES[other], other: FILES[name]},
        FILES | {name: b""},
    ):
        assert not all_ok(list(sums_checks(files)))


digests = st.dictionaries(
    st.text(min_size=1, max_size=8), st.binary(min_size=32, max_size=32).map(bytes.hex), min_size=1
)


@given(files=digests, data=st.data())
def test_root_depends_on_every_name_and_digest(files, data):
    root = merkle_root(files)
    assert root == merkle_root(dict(sorted(files.items(), reverse=True)))
    name = data.draw(st.sampled_from(sorted(files)))
    rest = {k: v for k, v in files.items() if k != name}
    assert merkle_root(rest | {name: "00" * 32 if files[name] != "00" * 32 else "11" * 32}) != root
    assert merkle_root(rest | {name + "x": files[name]}) != root or name + "x" in rest
    if rest:
        assert merkle_root(rest) != root
