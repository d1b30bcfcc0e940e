"""Any single changed byte of a bundle must fail its verification."""

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.benchmark.bundle import build_bundle_files, write_bundle_dir
from cadenza.benchmark.verify import all_ok, verify_bundle_dir
from tests.campaigns import size
from tests.unit.benchmark.samples import make_request

FILES = build_bundle_files(make_request())
#: Kinds of byte that parsers treat differently.
CLASSES = {
    "digit": string.digits.encode(),
    "letter": string.ascii_letters.encode(),
    "white": b" \n",
    "punctuation": string.punctuation.encode(),
}


def positions(name, kind):
    return [i for i, byte in enumerate(FILES[name]) if byte in CLASSES[kind]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("bundle") / "bundle"
    write_bundle_dir(path, FILES)
    assert all_ok(verify_bundle_dir(path))
    return path


def verdict_after_change(folder, name, position, value):
    path = folder / name
    changed = bytearray(FILES[name])
    changed[position] = value
    try:
        path.write_bytes(changed)
        return all_ok(verify_bundle_dir(folder))
    finally:
        path.write_bytes(FILES[name])


@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, kind) for name in sorted(FILES) for kind in sorted(CLASSES) if positions(name, kind)],
)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_any_changed_byte_of_any_kind_in_any_file_fails(folder, name, kind, data):
    position = data.draw(st.sampled_from(positions(name, kind)))
    value = data.draw(st.integers(0, 255).filter(lambda v: v != FILES[name][position]))
    assert not verdict_after_change(folder, name, position, value)


@pytest.mark.parametrize("bit", [0x01, 0x80])
def test_every_position_of_the_sums_file_is_protected(folder, bit):
    data = FILES["SHA256SUMS.txt"]
    for position in range(0, len(data), size(5, 1)):
        assert not verdict_after_change(folder, "SHA256SUMS.txt", position, data[position] ^ bit)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_truncated_file_fails(folder, data):
    name = data.draw(st.sampled_from(sorted(FILES)))
    length = data.draw(st.integers(0, len(FILES[name]) - 1))
    try:
        (folder / name).write_bytes(FILES[name][:length])
        assert not all_ok(verify_bundle_dir(folder))
    finally:
        (folder / name).write_bytes(FILES[name])
