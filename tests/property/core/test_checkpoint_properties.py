import functools
import io
import tempfile
import zipfile
from pathlib import Path

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cadenza.core.checkpoints import (
    CheckpointMetadata,
    load_checkpoint,
    save_checkpoint,
    sidecar_path,
)
from cadenza.core.errors import CheckpointError
from cadenza.core.payloads import deserialise, serialise
from tests.campaigns import size

URI = "local://artifacts/foo.pt"

tensors = hnp.arrays(
    st.sampled_from([np.float32, np.float64, np.int64, np.bool_]),
    hnp.array_shapes(min_dims=0, max_side=4),
).map(lambda array: torch.from_numpy(array.copy()))
leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | tensors
states = st.dictionaries(
    st.text(max_size=5),
    st.recursive(
        leaves,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.lists(inner, max_size=3).map(tuple)
            | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3)
        ),
        max_leaves=8,
    ),
    max_size=4,
)


def same(first, second) -> bool:
    """Equality of type and bits, NaN included."""
    if type(first) is not type(second):
        return False
    if isinstance(first, torch.Tensor):
        return first.dtype == second.dtype and np.array_equal(
            first.numpy(), second.numpy(), equal_nan=first.is_floating_point()
        )
    if isinstance(first, dict):
        return list(first) == list(second) and all(same(first[k], second[k]) for k in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    if isinstance(first, float):
        return first == second or (first != first and second != second)
    return first == second


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(state=states)
def test_state_always_comes_back_and_serialises_to_the_same_bytes(state):
    data = serialise(state)
    loaded = deserialise(data, max_bytes=2**20)
    assert same(loaded, state)
    assert serialise(loaded) == data


@functools.cache
def saved_pair() -> tuple[bytes, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        metadata = CheckpointMetadata(
            run_id="r", seed=1, step=2, git_sha="g", pyproject_hash="p", extra={"log_bytes": 12}
        )
        path = save_checkpoint(
            state_dict={"w": torch.arange(4.0)},
            uri=URI,
            metadata=metadata,
            artifacts_root=Path(folder),
        )
        return path.read_bytes(), sidecar_path(path).read_bytes()


def load_pair(payload: bytes, sidecar: bytes):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "artifacts" / "foo.pt"
        path.parent.mkdir()
        path.write_bytes(payload)
        sidecar_path(path).write_bytes(sidecar)
        return load_checkpoint(uri=URI, artifacts_root=Path(folder))


@given(place=st.integers(0), bit=st.integers(0, 7))
def test_payload_with_any_flipped_bit_is_refused(place, bit):
    payload, sidecar = saved_pair()
    changed = bytearray(payload)
    changed[place % len(changed)] ^= 1 << bit
    with pytest.raises(CheckpointError, match="integrity check failed"):
        load_pair(bytes(changed), sidecar)


def test_sidecar_with_any_flipped_bit_is_refused_or_means_the_same():
    payload, sidecar = saved_pair()
    metadata = load_pair(payload, sidecar)[1]
    refused = 0
    for place in range(len(sidecar)):
        for bit in size((0, 5), range(8)):
            changed = bytearray(sidecar)
            changed[place] ^= 1 << bit
            try:
                assert load_pair(payload, bytes(changed))[1] == metadata
            except CheckpointError:
                refused += 1
    assert refused > len(sidecar)


@functools.cache
def archive_members() -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(serialise({"w": torch.arange(4.0), "n": [1.5, "x"]}))) as file:
        return {name: file.read(name) for name in file.namelist()}


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch comments on the odd archives
@settings(deadline=None)
@given(place=st.integers(0), value=st.integers(0, 255))
def test_archive_with_a_changed_program_is_refused_or_gives_plain_values(place, value):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in archive_members().items():
            changed = bytearray(content)
            if name.endswith("data.pkl"):
                changed[place % len(changed)] = value
            archive.writestr(name, bytes(changed))
    try:
        loaded = deserialise(buffer.getvalue(), max_bytes=2**20)
    except CheckpointError:
        return
    assert isinstance(loaded, dict)


@given(length=st.integers(0))
def test_payload_cut_anywhere_is_refused(length):
    payload, sidecar = saved_pair()
    with pytest.raises(CheckpointError, match="integrity check failed"):
        load_pair(payload[: length % len(payload)], sidecar)
