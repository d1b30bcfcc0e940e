"""Where chunks of a draw land, and how they get to another device."""

import pytest
import torch
from tensordict import TensorDict

from cadenza.core.errors import InputError
from cadenza.stream import batches
from cadenza.stream.batches import chunk_targets, filled_batch, landing_buffers
from cadenza.stream.draw_options import DEFAULT_OPTIONS, DrawOptions
from tests.unit.stream.stores import new_store

CPU, META = torch.device("cpu"), torch.device("meta")
SIZE = (4, 3)
CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def test_processor_copies_straight_into_the_batch() -> None:
    layout = new_store().layout
    targets = chunk_targets(layout, SIZE, DEFAULT_OPTIONS, ["obs"], None, CPU)
    assert landing_buffers(layout, SIZE, targets, CPU) is targets
    batch = filled_batch(targets, targets, SIZE, CPU, None)
    assert batch["obs"].data_ptr() == targets["obs"].data_ptr()


def test_only_the_keys_of_out_land_before_they_go_to_a_device() -> None:
    layout = new_store().layout
    out = TensorDict({"rewards": torch.empty(SIZE, device="meta")}, SIZE)
    targets = chunk_targets(layout, SIZE, DEFAULT_OPTIONS, None, out, META)
    landed = landing_buffers(layout, SIZE, targets, META)
    assert {name: tensor.device.type for name, tensor in landed.items()} == {"rewards": "cpu"}
    assert filled_batch(targets, landed, SIZE, META, out) is out


@pytest.mark.parametrize(("device", "is_pinned"), [("meta", False), ("cuda", True)])
def test_memory_that_a_cuda_device_copies_from_is_page_locked(
    monkeypatch: pytest.MonkeyPatch, device: str, is_pinned: bool
) -> None:
    layout, asked = new_store().layout, []
    monkeypatch.setattr(
        batches, "allocate_chunks", lambda *_, pin_memory: asked.append(pin_memory) or {}
    )
    targets = {"rewards": torch.empty(SIZE, device="meta")}
    landing_buffers(layout, SIZE, targets, torch.device(device))
    assert asked == [is_pinned]


def test_targets_on_a_device_have_shape_and_type_of_the_chunks() -> None:
    layout = new_store().layout
    for wrong in (torch.empty(4, 2), torch.empty(SIZE, dtype=torch.float64)):
        with pytest.raises(InputError, match=r"out\['rewards'\]: expected a contiguous"):
            landing_buffers(layout, SIZE, {"rewards": wrong.to(META)}, META)


@pytest.mark.parametrize("name", ["cuda:1", "meta"])
def test_out_on_another_device_is_refused(name: str) -> None:
    out = TensorDict({"rewards": torch.empty(SIZE)}, SIZE)
    told = rf"out\['rewards'\] on the device '{name}', got 'cpu'; move it"
    with pytest.raises(InputError, match=told):
        chunk_targets(new_store().layout, SIZE, DEFAULT_OPTIONS, None, out, torch.device(name))


def test_padding_needs_a_place_on_every_device() -> None:
    out = TensorDict({"rewards": torch.empty(SIZE, device="meta")}, SIZE)
    with pytest.raises(InputError, match=r"it lacks \['valid'\]"):
        chunk_targets(new_store().layout, SIZE, DrawOptions(short="pad"), None, out, META)


@CUDA
def test_batch_arrives_on_a_cuda_device() -> None:
    layout, device = new_store().layout, torch.device("cuda")
    targets = chunk_targets(layout, SIZE, DEFAULT_OPTIONS, ["rewards"], None, device)
    landed = landing_buffers(layout, SIZE, targets, device)
    assert landed["rewards"].is_pinned()
    landed["rewards"].fill_(7.0)
    batch = filled_batch(targets, landed, SIZE, device, None)
    assert batch["rewards"].device.type == "cuda"
    assert (batch["rewards"] == 7.0).all()
