import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cadenza.core.checkpoints import sidecar_path
from cadenza.core.errors import CheckpointError
from cadenza.learn.callbacks.checkpointing import checkpoint_path, read_checkpoint, write_checkpoint

LIMIT = 2**20
CONTENT = {
    "callback_state_dicts": {"net": {"weight": torch.arange(12.0).reshape(3, 4), "steps": [1, 2]}},
    "training_state": {"bp_step": 3, "bp_samples": 30, "checkpoint_index": 0},
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Return a folder and the bytes of an intact checkpoint and its manifest."""
    folder = tmp_path_factory.mktemp("damage")
    path = write_checkpoint(folder, 0, CONTENT, None)
    return folder, path.read_bytes(), sidecar_path(path).read_bytes()


def read_with(folder, payload, manifest):
    checkpoint_path(folder, 0).write_bytes(payload)
    sidecar_path(checkpoint_path(folder, 0)).write_bytes(manifest)
    return read_checkpoint(folder, 0, max_bytes=LIMIT, require_manifest=True)


def assert_same(content):
    net = content["callback_state_dicts"]["net"]
    assert torch.equal(net["weight"], CONTENT["callback_state_dicts"]["net"]["weight"])
    assert content["training_state"] == CONTENT["training_state"]


@given(data=st.data())
def test_changed_byte_in_either_file_is_an_error_or_changes_nothing(pair, data):
    folder, payload, manifest = pair
    files = [bytearray(payload), bytearray(manifest)]
    which = data.draw(st.integers(0, 1))
    place = data.draw(st.integers(0, len(files[which]) - 1))
    files[which][place] ^= data.draw(st.integers(1, 255))
    try:
        content = read_with(folder, *map(bytes, files))
    except CheckpointError:
        return
    assert which == 1  # the digest covers every byte of the payload
    assert_same(content)


@given(data=st.data())
def test_truncated_file_is_an_error(pair, data):
    folder, payload, manifest = pair
    cut = data.draw(st.integers(0, len(payload) - 1))
    with pytest.raises(CheckpointError):
        read_with(folder, payload[:cut], manifest)


@given(junk=st.binary(max_size=400))
def test_junk_without_a_manifest_is_one_kind_of_error(pair, junk):
    folder = pair[0]
    checkpoint_path(folder, 1).write_bytes(junk)
    with pytest.raises(CheckpointError):
        read_checkpoint(folder, 1, max_bytes=LIMIT, require_manifest=False)
