from typing import Any

import pytest
import torch
from torch import Tensor

from cadenza.learn.models import DynamicModel, EnsembleOfGaussian, HoldOut
from cadenza.learn.models.callbacks import ModelLoss
from cadenza.learn.models.ensemble import holdout_mask, row_keys

Transition = tuple[Tensor, Tensor, Tensor, Tensor]


def transitions(count: int, seed: int = 0) -> Transition:
    draws = torch.randn(count, 3, generator=torch.Generator().manual_seed(seed))
    obs, action = draws[:, :2], draws[:, 2:]
    return obs, obs + action, action, action.square()


def ensemble(members: int = 3, **options: Any) -> EnsembleOfGaussian:
    return EnsembleOfGaussian(
        in_size=3,
        out_size=3,
        device="cpu",
        ensemble_size=members,
        hidden_size=8,
        num_layers=1,
        **options,
    )


def with_member_outputs(model: DynamicModel, offsets: list[float]) -> None:
    """Make member e predict ``offsets[e]`` in the first column and 0 elsewhere."""
    with torch.no_grad():
        for parameter in model.ensemble.member_parameters().values():
            parameter.zero_()
        model.ensemble.mean_and_logvar.bias[:, 0, 0] = torch.tensor(offsets)


def model_loss(hold_out: HoldOut | None, model: DynamicModel | None = None) -> ModelLoss:
    model = model or DynamicModel(model=ensemble())
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    return ModelLoss(model=model, opt=optimizer, hold_out=hold_out)


def judged(model: DynamicModel, interval: int, patience: int) -> HoldOut:
    """Return a `HoldOut` that has kept half of 100 transitions for ``model``."""
    data = transitions(100)
    model.process_batch(*data)
    hold_out = HoldOut(fraction=0.5, interval=interval, patience=patience)
    hold_out.keep(data)
    return hold_out


def step(loss: ModelLoss, data: Transition) -> None:
    obs, next_obs, action, reward = data
    loss.backward({"obs": obs}, {"obs": next_obs}, action, reward)


def test_a_lasting_share_is_kept_out_of_training():
    data = transitions(2000)
    hold_out = HoldOut(fraction=0.25, seed=4)
    train = hold_out.keep(data)
    expected = ~holdout_mask(row_keys(*data), fraction=0.25, seed=4)
    assert torch.equal(train, expected)
    assert len(hold_out) == 2000 - int(train.sum())
    assert torch.equal(hold_out.keep(data), train)  # in another batch, the same choice


def test_best_members_become_elites_and_the_round_ends_without_progress():
    model = DynamicModel(model=ensemble(num_elites=1))
    hold_out = judged(model, interval=2, patience=2)
    with_member_outputs(model, [1.0, 0.0, 2.0])
    hold_out.after_step(model)
    assert hold_out.errors == []  # not yet time to judge
    hold_out.after_step(model)
    assert model.ensemble.elites.tolist() == [1]
    # columns have variance 1: an offset c adds about c^2 / 3 to the mean of three columns
    assert hold_out.errors[0] - hold_out.errors[1] == pytest.approx(1 / 3, abs=0.15)
    with_member_outputs(model, [5.0, 5.0, 5.0])  # everyone gets worse from here
    for steps in range(4):
        assert not hold_out.resting, steps
        hold_out.after_step(model)
    assert hold_out.resting
    # the best versions are back, and the best of them is the elite
    assert model.ensemble.mean_and_logvar.bias[:, 0, 0].tolist() == [1.0, 0.0, 2.0]
    assert model.ensemble.elites.tolist() == [1]


def test_progress_of_one_member_keeps_the_round_going_and_is_kept():
    model = DynamicModel(model=ensemble(num_elites=1))
    hold_out = judged(model, interval=1, patience=2)
    for offsets in ([2.0, 2.0, 2.0], [3.0, 3.0, 1.0], [4.0, 4.0, 4.0], [4.0, 4.0, 4.0]):
        with_member_outputs(model, offsets)
        hold_out.after_step(model)
    assert hold_out.resting
    assert model.ensemble.mean_and_logvar.bias[:, 0, 0].tolist() == [2.0, 2.0, 1.0]
    assert model.ensemble.elites.tolist() == [2]


def test_improvement_below_one_per_cent_does_not_count():
    model = DynamicModel(model=ensemble(members=1))
    hold_out = judged(model, interval=1, patience=1)
    for offset in (1.0, 0.999):
        with_member_outputs(model, [offset])
        hold_out.after_step(model)
    assert hold_out.resting


@pytest.mark.parametrize("rest", [1, 3])
def test_training_rests_and_starts_a_new_round(rest):
    hold_out = HoldOut(fraction=0.3, interval=1, patience=1, rest=rest)
    loss = model_loss(hold_out)
    data = transitions(60)
    for _ in range(500):
        step(loss, data)
        if hold_out.resting:
            break
    assert hold_out.resting
    assert loss.scalar_logs["loss/dynamic_model_resting"] == 1.0
    weights = list(loss.model.ensemble.member_parameters().values())
    frozen = [p.detach().clone() for p in weights]
    for _ in range(rest - 1):
        step(loss, data)
        assert all(torch.equal(a, b) for a, b in zip(frozen, weights, strict=True))
    step(loss, data)
    assert not hold_out.resting
    step(loss, data)
    assert not torch.equal(frozen[0], weights[0])


def test_held_out_rows_never_train():
    """Statistics of the normaliser count the training rows only."""
    hold_out = HoldOut(fraction=0.4)
    loss = model_loss(hold_out)
    data = transitions(100)
    step(loss, data)
    assert int(loss.model.input_normalizer.count) == 100 - len(hold_out)


def test_a_batch_of_held_out_rows_only_changes_nothing():
    hold_out = HoldOut(fraction=0.5)
    data = transitions(50)
    held = ~hold_out.keep(data)
    loss = model_loss(HoldOut(fraction=0.5))
    before = [p.detach().clone() for p in loss.model.parameters()]
    step(loss, tuple(part[held] for part in data))  # type: ignore[arg-type]
    assert all(torch.equal(a, b) for a, b in zip(before, loss.model.parameters(), strict=True))
    assert int(loss.model.input_normalizer.count) == 0


def test_resumed_training_equals_an_unbroken_one():
    data = [transitions(64, seed=i) for i in range(12)]

    def fresh() -> ModelLoss:
        return model_loss(HoldOut(fraction=0.3, interval=2, patience=1, rest=2))

    whole, half = fresh(), fresh()
    for batch in data:
        step(whole, batch)
    for batch in data[:6]:
        step(half, batch)
    resumed = fresh()
    resumed.load_state_dict(half.state_dict())
    for batch in data[6:]:
        step(resumed, batch)
    expected = whole.model.state_dict()
    for name, value in resumed.model.state_dict().items():
        assert torch.equal(value, expected[name]), name
    assert resumed.hold_out is not None
    assert whole.hold_out is not None
    assert resumed.hold_out.errors == whole.hold_out.errors
    assert len(resumed.hold_out) == len(whole.hold_out)
