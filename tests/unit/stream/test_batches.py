"""Where chunks of a draw land, and how they get to another device."""

import pytest
import torch
from tensordict import TensorDict

from cadenza.core.errors import InputError, UnknownNameError
from cadenza.stream import batches
from cadenza.stream.batches import Batches
from cadenza.stream.draw_options import DEFAULT_OPTIONS, DrawOptions
from tests.stream_episodes import new_store

SIZE = (4, 3)


def on(device: str = "cpu") -> Batches:
    return Batches(new_store().layout, torch.device(device))


def kept(**tensors: torch.Tensor) -> TensorDict:
    return TensorDict(dict(tensors), SIZE)


def test_processor_copies_straight_into_the_batch() -> None:
    targets = on().targets(SIZE, DEFAULT_OPTIONS, ["obs"], None)
    assert on().landing(SIZE, targets) is targets
    batch = on().batch(targets, targets, SIZE, None)
    assert batch["obs"].data_ptr() == targets["obs"].data_ptr()


def test_only_the_keys_of_out_land_before_they_go_to_a_device() -> None:
    out = kept(rewards=torch.empty(SIZE, device="meta"))
    targets = on("meta").targets(SIZE, DEFAULT_OPTIONS, None, out)
    landed = on("meta").landing(SIZE, targets)
    assert {name: tensor.device.type for name, tensor in landed.items()} == {"rewards": "cpu"}
    assert on("meta").batch(targets, landed, SIZE, out) is out


@pytest.mark.parametrize(("device", "is_pinned"), [("meta", False), ("cuda", True)])
def test_memory_that_a_cuda_device_copies_from_is_page_locked(
    monkeypatch: pytest.MonkeyPatch, device: str, is_pinned: bool
) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(
        batches, "allocate_chunks", lambda *_, pin_memory: asked.append(pin_memory) or {}
    )
    on(device).landing(SIZE, {"rewards": torch.empty(SIZE, device="meta")})
    assert asked == [is_pinned]


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_targets_have_shape_and_type_of_the_chunks(device: str) -> None:
    gaps = torch.empty(4, 6, device=device)[:, ::2]
    for wrong in (torch.empty(4, 3, 2), torch.empty(SIZE, dtype=torch.float64), gaps):
        out = kept(rewards=wrong.to(device))
        with pytest.raises(InputError, match=r"out\['rewards'\]: expected a contiguous"):
            on(device).targets(SIZE, DEFAULT_OPTIONS, None, out)
    grown = kept(rewards=torch.empty(SIZE, device=device, requires_grad=True))
    with pytest.raises(InputError, match="expected a tensor without gradient"):
        on(device).targets(SIZE, DEFAULT_OPTIONS, None, grown)
    with pytest.raises(UnknownNameError, match="got 'reward'"):
        on(device).targets(SIZE, DEFAULT_OPTIONS, None, kept(reward=torch.empty(SIZE)))


@pytest.mark.parametrize("name", ["cuda:1", "meta"])
def test_out_on_another_device_is_refused(name: str) -> None:
    told = rf"out\['rewards'\] on the device '{name}', got 'cpu'; move it"
    with pytest.raises(InputError, match=told):
        on(name).targets(SIZE, DEFAULT_OPTIONS, None, kept(rewards=torch.empty(SIZE)))


def test_padding_needs_a_place_on_every_device() -> None:
    out = kept(rewards=torch.empty(SIZE, device="meta"))
    with pytest.raises(InputError, match=r"it lacks \['valid'\]"):
        on("meta").targets(SIZE, DrawOptions(short="pad"), None, out)
