import io
import zipfile
from collections import OrderedDict

import numpy as np
import pytest
import torch

from cadenza.core.errors import CheckpointError
from cadenza.core.payloads import deserialise, serialise

LIMIT = 2**20


class RunsCode:
    """Pickled as a call, the way a hostile file would be."""

    def __reduce__(self):
        return eval, ("1 + 1",)


def archive_of(value) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def test_serialise_after_loading_gives_the_same_bytes():
    network = torch.nn.Linear(3, 2)
    optimisers = [torch.optim.Adam(network.parameters()) for _ in range(2)]
    network(torch.ones(1, 3)).sum().backward()
    for optimiser in optimisers:
        optimiser.step()
    # The two optimisers share their default ``betas`` tuple; loaded ones do not.
    state = {"net": network.state_dict(), "opt": [o.state_dict() for o in optimisers]}
    data = serialise(state)

    copy = torch.nn.Linear(3, 2)
    loaded = deserialise(data, max_bytes=LIMIT)
    copy.load_state_dict(loaded["net"])
    copies = [torch.optim.Adam(copy.parameters()) for _ in range(2)]
    for optimiser, saved in zip(copies, loaded["opt"], strict=True):
        optimiser.load_state_dict(saved)
    again = {"net": copy.state_dict(), "opt": [o.state_dict() for o in copies]}
    assert serialise(again) == data


def test_serialise_ignores_how_values_are_shared():
    large = torch.arange(1000.0)
    view, own = large[10:13], torch.tensor([10.0, 11.0, 12.0])
    name = "".join(["sha", "red"])
    assert serialise({"a": view, "b": view, "c": name, "d": "shared"}) == serialise(
        {"a": own, "b": own.clone(), "c": "shared", "d": "shared"}
    )


def test_serialise_ignores_strides_gradients_and_mapping_types():
    plain = {"w": torch.tensor([[1.0, 3.0], [2.0, 4.0]]), "n": {"x": 1.0}}
    transposed = torch.nn.Parameter(torch.tensor([[1.0, 2.0], [3.0, 4.0]])).T
    assert serialise({"w": transposed, "n": OrderedDict(x=np.float64(1.0))}) == serialise(plain)


def test_serialise_of_a_small_view_does_not_write_its_whole_storage():
    assert len(serialise({"a": torch.zeros(1_000_000)[:3]})) < 10_000


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.float32(1.0), r"state\['a'\]\[0\]: expected .* got numpy.float32; .*\.item\(\)"),
        (np.zeros(2), r"state\['a'\]\[0\]: expected .* got numpy.ndarray; .*torch.from_numpy"),
        ({1, 2}, r"got builtins.set"),
        (b"x", r"got builtins.bytes; .*bytes with torch.frombuffer"),
        (torch.eye(2).to_sparse(), r"expected a dense tensor, got layout torch.sparse_coo"),
    ],
)
def test_serialise_of_a_value_that_could_not_be_loaded_names_its_place(value, message):
    with pytest.raises(CheckpointError, match=message):
        serialise({"a": [value]})


def test_deserialise_of_code_is_refused_and_runs_nothing():
    with pytest.raises(CheckpointError, match=r"torch refuses \(.*Unsupported global: .*eval"):
        deserialise(archive_of({"a": RunsCode()}), max_bytes=LIMIT)


@pytest.mark.parametrize("data", [b"", b"junk", b"PK\x03\x04" + bytes(100), b"\x80\x02}q\x00."])
def test_deserialise_of_something_else_is_refused(data):
    with pytest.raises(CheckpointError, match="expected a torch archive"):
        deserialise(data, max_bytes=LIMIT)


def test_deserialise_of_an_archive_that_unpacks_too_large_is_refused():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(5_000_000))
    assert len(buffer.getvalue()) < 10_000
    with pytest.raises(CheckpointError, match="at most 1048576 bytes unpacked, got 5000000"):
        deserialise(buffer.getvalue(), max_bytes=LIMIT)


def test_deserialise_of_a_list_is_refused():
    with pytest.raises(CheckpointError, match="expected a mapping of names to values, got list"):
        deserialise(archive_of([1]), max_bytes=LIMIT)
