import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cadenza.core.errors import InputError
from cadenza.learn.nn.curl import CurlLoss, CurlNetwork, contrastive_loss, soft_update_from_to
from cadenza.learn.nn.layers import Conv2dEncoder


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def encoder(seed: int = 0, flatten: bool = True) -> Conv2dEncoder:
    return Conv2dEncoder(
        (12, 12, 3), [4, 4], [3, 3], [2, 2], [1, 1], flatten=flatten, generator=generator(seed)
    )  # 12 -> 6 -> 3: 4 * 9 = 36 features


def curl(**options: Any) -> CurlLoss:
    sizes = {"learning_rate": 1e-3, "desired_zdim": 8}
    return CurlLoss(encoder(0), encoder(1), "cpu", **{**sizes, **options})


def images(count: int = 12, seed: int = 0) -> Tensor:
    """Return smooth images that differ from each other."""
    coarse = 2.0 * torch.rand(count, 3, 3, 3, generator=generator(seed)) - 1.0
    large = nn.functional.interpolate(coarse, size=(12, 12), mode="bilinear")
    return large.permute(0, 2, 3, 1).contiguous()


def observation(**options: Any) -> dict[str, Tensor]:
    return {"images": images(**options)}


def test_soft_update_moves_a_share_and_accepts_iterators():
    source, target = [torch.tensor([10.0]), torch.tensor([2.0])], [torch.zeros(1), torch.ones(1)]
    soft_update_from_to(iter(source), iter(target), 0.1)
    assert [t.item() for t in target] == pytest.approx([1.0, 1.1])
    with pytest.raises(InputError, match="equally many tensors, got 2 and 1"):
        soft_update_from_to(source, target[:1], 0.1)


def test_loss_is_the_cross_entropy_of_the_diagonal():
    logits = torch.tensor([[2.0, 0.0], [1.0, 4.0]])
    expected = (math.log(1 + math.exp(-2.0)) + math.log(1 + math.exp(-3.0))) / 2
    assert contrastive_loss(logits).item() == pytest.approx(expected, rel=1e-6)
    # subtracting the maximum of each row changes nothing; subtracting along columns would
    assert contrastive_loss(logits - logits.max(1, True).values).item() == pytest.approx(expected)
    assert contrastive_loss(logits - logits.max(0).values).item() != pytest.approx(expected)


def test_logits_are_bilinear_in_both_latents():
    network = CurlNetwork(encoder(), encoder(1), 36, 5, True, generator())
    a, b = images(4), images(3, seed=1)
    z_a = torch.relu(
        network.encoder(a) @ network.projection[0].weight.T  # type: ignore[index]
        + network.projection[0].bias
    )  # type: ignore[index]
    z_b = torch.relu(
        network.encoder(b) @ network.projection[0].weight.T  # type: ignore[index]
        + network.projection[0].bias
    )  # type: ignore[index]
    torch.testing.assert_close(network(a, b), z_a @ network.bilinear @ z_b.T)
    assert network.bilinear.shape == (5, 5)
    assert float(network.bilinear.detach().min()) >= 0.0
    assert float(network.bilinear.detach().max()) < 1.0


def test_targets_start_as_copies_and_are_not_trained():
    loss = curl()
    network = loss.curl
    for fast, slow in (
        (network.encoder, network.target_encoder),
        (network.projection, network.target_projection),
    ):
        for p, q in zip(fast.parameters(), slow.parameters(), strict=True):
            assert torch.equal(p, q)
            assert not q.requires_grad
    trained = {id(p) for p in loss.parameters}
    assert trained == {
        id(p) for m in (network.encoder, network.projection) for p in m.parameters()
    } | {id(network.bilinear)}
    assert loss.parameters() is loss.parameters


def test_every_target_tensor_follows_with_tau_in_every_batch():
    """Convolutions, projection and buffers; twice, because an exhausted iterator follows once."""
    loss = curl(tau=0.25)
    loss.curl.encoder.add_module("norm", nn.BatchNorm1d(2))
    loss.curl.target_encoder.add_module("norm", nn.BatchNorm1d(2))
    with torch.no_grad():
        for module in (loss.curl.encoder, loss.curl.projection):
            for tensor in module.state_dict().values():
                if tensor.is_floating_point():
                    tensor.fill_(1.0)
        for module in (loss.curl.target_encoder, loss.curl.target_projection):
            for tensor in module.state_dict().values():
                if tensor.is_floating_point():
                    tensor.fill_(0.0)
    for expected in (0.25, 0.4375):
        loss.end_batch()
        for module in (loss.curl.target_encoder, loss.curl.target_projection):
            for name, tensor in module.state_dict().items():
                if tensor.is_floating_point():
                    assert torch.all(tensor == expected), name


def test_training_learns_to_recognise_images():
    loss = curl(tau=0.05)
    batch = observation()
    values: list[float] = []
    for _ in range(250):
        loss.backward(batch)
        loss.end_batch()
        values.append(loss.scalar_logs["loss/curl_loss"])
    assert sum(values[-20:]) / 20 < 0.9 * math.log(12)  # better than guessing among 12


def test_temperature_divides_the_logits_unless_switched_off():
    def first_loss(**options: Any) -> float:
        loss = curl(**options)
        loss.backward(observation())
        return loss.scalar_logs["loss/curl_loss"]

    hot, plain = first_loss(temperature=0.5), first_loss(use_temperature_variant=False)
    reference = curl()
    anchors, positives = (reference.augmentor(images()) for _ in range(2))
    logits = reference.curl(anchors, positives).detach()
    assert hot == pytest.approx(contrastive_loss(logits / 0.5).item(), rel=1e-5)
    assert plain == pytest.approx(contrastive_loss(logits).item(), rel=1e-5)


def test_learning_rate_goes_from_start_to_end():
    loss = curl(
        learning_rate=1.0,
        learning_rate_start_frac=0.5,
        learning_rate_end_frac=0.1,
        learning_rate_steps=4,
    )
    assert loss.optimizer is not None
    rates = [loss.optimizer.param_groups[0]["lr"]]
    for _ in range(5):
        loss.backward(observation())
        rates.append(loss.scalar_logs["loss/curl_lr"])
    assert rates == pytest.approx([0.5, 0.4, 0.3, 0.2, 0.1, 0.1])


def test_resumed_training_equals_an_unbroken_one():
    def fresh() -> CurlLoss:
        return curl(use_noise_aug=True, learning_rate_steps=6, learning_rate_end_frac=0.1)

    def steps(loss: CurlLoss, seeds: range) -> None:
        for seed in seeds:
            loss.backward(observation(seed=seed))
            loss.end_batch()

    whole, half, resumed = fresh(), fresh(), fresh()
    steps(whole, range(8))
    steps(half, range(4))
    resumed.load_state_dict(half.state_dict())
    steps(resumed, range(4, 8))
    expected = whole.curl.state_dict()
    assert "target_encoder.layers.0.weight" in expected
    for name, value in resumed.curl.state_dict().items():
        assert torch.equal(value, expected[name]), name
