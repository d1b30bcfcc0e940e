"""Nothing can happen to the bytes of a bundle unseen: every flip, cut, swap, file more or less."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.benchmark.bundle import build_bundle_files, write_bundle_dir
from cadenza.benchmark.signing import (
    SIGNATURE_NAME,
    make_key,
    merkle_root,
    sign_statement,
    signature_checks,
    statement_of,
)
from cadenza.benchmark.verify import all_ok, sums_checks, verify_bundle_dir
from cadenza.core.errors import IntegrityError
from cadenza.evaluation.results import ResultBundle
from cadenza.evaluation.summary import SummarySettings
from tests.campaigns import size
from tests.unit.benchmark.samples import make_plan, make_request


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


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("bundle") / "bundle"
    write_bundle_dir(path, FILES)
    assert all_ok(verify_bundle_dir(path))
    return path


@pytest.mark.parametrize("name", sorted(FILES))
def test_every_flipped_bit_of_every_byte_is_found(name):
    assert all_ok(list(sums_checks(FILES)))
    for position, byte in enumerate(FILES[name]):
        for bit in range(8) if size(False, True) else (position % 8,):
            changed = bytearray(FILES[name])
            changed[position] = byte ^ 1 << bit
            assert not all_ok(list(sums_checks(FILES | {name: bytes(changed)})))


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


def test_every_truncation_of_every_file_is_found():
    for name, data in FILES.items():
        for length in range(len(data)):
            assert not all_ok(list(sums_checks(FILES | {name: data[:length]})))


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_byte_changed_on_disk_fails_the_whole_verification(folder, data):
    name = data.draw(st.sampled_from(sorted(FILES)))
    position = data.draw(st.integers(0, len(FILES[name]) - 1))
    changed = bytearray(FILES[name])
    changed[position] = data.draw(st.integers(0, 255).filter(lambda v: v != changed[position]))
    try:
        (folder / name).write_bytes(changed)
        assert not all_ok(verify_bundle_dir(folder))
    finally:
        (folder / name).write_bytes(FILES[name])


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
