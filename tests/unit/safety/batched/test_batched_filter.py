"""The batched filter at its boundary: rows by hand, refusals, gradients, edge sizes."""

import numpy as np
import pytest
import torch

from cadenza.core.errors import ConfigurationError, InputError
from cadenza.safety.batched import BatchedEgoFilter
from cadenza.safety.batched.projection import FEW, OPTIMAL
from cadenza.safety.contracts import Bounds
from cadenza.safety.control_models import DoubleIntegratorControlModel, JacobianControlModel

DT = 0.05
BOUNDS = Bounds(2.0, 2.0, 1.0, 0.0, 0.0)
EGO = DoubleIntegratorControlModel("ego", 2)
PARTNER = DoubleIntegratorControlModel("p", 2, capacity=0.5)


def real(*values):
    return torch.tensor(values, dtype=torch.float64)


def guard(**changes):
    options = {"ego_model": EGO, "partner_models": [PARTNER], "bounds": BOUNDS, "dt": DT}
    return BatchedEgoFilter(**(options | changes))


def scene(size=1, **changes):
    """Ego at rest in the origin, partner at rest 1 m ahead, nominal towards it."""
    given = {
        "nominal": real([2.0, 0.0]).repeat(size, 1),
        "ego_position": torch.zeros(size, 2).double(),
        "ego_velocity": torch.zeros(size, 2).double(),
        "partner_positions": real([[1.0, 0.0]]).repeat(size, 1, 1),
        "partner_velocities": torch.zeros(size, 1, 2).double(),
        "ego_radius": 0.2,
        "partner_radii": [0.2],
    }
    return given | changes


@pytest.mark.parametrize("plant", ["zoh", "semi_implicit"])
def test_gradients_are_finite_everywhere(plant):
    # Coincident centres, exact contact, overlap, zero speed, and a state out of every set.
    offsets = real([0.0, 0.0], [0.4, 0.0], [0.1, 0.0], [1.0, 0.0], [0.5, 0.0])
    speeds = real([0.0, 0.0], [0.0, 0.0], [1.0, 0.0], [0.0, 0.0], [-9.0, 0.0])
    moving = {"ego_position": offsets, "ego_velocity": speeds}
    inputs = {
        name: values.clone().requires_grad_(True)
        for name, values in (scene(5, nominal=real([-2.0, 0.3]).repeat(5, 1)) | moving).items()
        if isinstance(values, torch.Tensor)
    }
    inputs["partner_positions"].data.zero_()
    step = guard(plant=plant).filter(**inputs, ego_radius=0.2, partner_radii=[0.2])
    assert len(set(step.status.tolist())) > 1
    (step.action.sum() + step.h.sum() + step.margin.sum()).backward()
    for name, values in inputs.items():
        assert bool(torch.isfinite(values.grad).all()), name
    assert bool((inputs["ego_velocity"].grad != 0.0).any())


def test_gradient_of_the_whole_filter_matches_differences():
    # Six egos that approach the partner from several angles and distances, all held back.
    generator = torch.Generator().manual_seed(5)
    noise = torch.rand(6, 2, generator=generator).double()
    nominal = real([2.0, 0.3]).repeat(6, 1)
    velocity = real([0.9, 0.0]) + 0.1 * noise
    places = (real([0.7, 0.02]) + 0.1 * noise).unsqueeze(1)
    still = torch.zeros_like(places)
    step = guard()

    def action(u, p, v, q):
        return step.filter(u, p, v, q, still, 0.2, [0.2]).action

    arguments = (nominal, torch.zeros_like(nominal), velocity, places)
    status = step.filter(*arguments, still, 0.2, [0.2]).status
    assert status.tolist() == [OPTIMAL] * 6
    inputs = tuple(values.clone().requires_grad_(True) for values in arguments)
    assert torch.autograd.gradcheck(action, inputs, eps=1e-7, atol=1e-4)


@pytest.mark.parametrize("count", [1, FEW + 1])
def test_gradient_reaches_lambda_in_every_size_of_batch(count):
    lambda_ = torch.full((count, 1), -0.1, dtype=torch.float64, requires_grad=True)
    given = scene(
        count,
        ego_velocity=real([0.9, 0.0]).repeat(count, 1),
        partner_positions=real([[0.75, 0.0]]).repeat(count, 1, 1),
    )
    step = guard().filter(**given, lambda_=lambda_)
    assert set(step.status.tolist()) == {OPTIMAL}
    step.action.sum().backward()
    assert bool((lambda_.grad != 0.0).all())


def test_forward_derivative_of_h_matches_differences():
    given = scene(2, partner_positions=real([[0.6, 0.0]]).repeat(2, 1, 1))
    places = given.pop("partner_positions")

    def h(p):
        return guard().filter(**given, partner_positions=p).h

    _, ahead = torch.func.jvp(h, (places,), (torch.ones_like(places),))
    step = 1e-6
    across = (h(places + step) - h(places - step)) / (2.0 * step)
    torch.testing.assert_close(ahead, across, rtol=1e-6, atol=1e-6)
    assert bool((ahead > 1.0).all())


def test_record_keeps_its_lambda_when_that_of_the_caller_changes():
    lambda_ = real([-0.5], [-0.5])
    step = guard().filter(**scene(2), lambda_=lambda_)
    lambda_.zero_()
    assert step.lambda_.tolist() == [[-0.5], [-0.5]]


@pytest.mark.parametrize("max_age_s", [0.0, 0.3])
def test_barrier_is_that_of_the_filter_whatever_age_it_is_declared_for(max_age_s):
    step = guard(max_age_s=max_age_s)
    given = scene(3)
    h = step.barrier_values(
        (given["ego_position"], given["ego_velocity"]),
        (given["partner_positions"], given["partner_velocities"]),
        torch.tensor([0.4], dtype=torch.float64),
    )
    torch.testing.assert_close(h, step.filter(**given).h, rtol=0.0, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("nominal", torch.ones(2, 2), "ego_position: expected torch.float32"),
        ("nominal", np.ones((2, 2)), r"nominal: expected a tensor, got ndarray; .*as_tensor"),
        ("nominal", torch.ones(2).double(), r"nominal: expected shape \(B, 2\)"),
        ("partner_radii", [0.2, 0.2], "partner_radii: expected shape"),
        ("ego_velocity", real([0.0, 0.0], [torch.nan, 0.0]), "ego_velocity: expected finite"),
    ],
)
def test_malformed_input_is_refused(name, value, message):
    with pytest.raises(InputError, match=message):
        guard().filter(**scene(2, **{name: value}))


def test_large_batches_are_cut_without_a_seam():
    generator = torch.Generator().manual_seed(0)
    given = scene(9000, nominal=torch.randn(9000, 2, generator=generator).double() * 2.0)
    radii = torch.full((9000,), 0.2, dtype=torch.float64)
    whole = guard().filter(**given | {"ego_radius": radii})
    tail = {
        name: values[8000:] if isinstance(values, torch.Tensor) else values
        for name, values in given.items()
    }
    for name, values in zip(whole._fields, guard().filter(**tail), strict=True):
        torch.testing.assert_close(getattr(whole, name)[8000:], values, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("capturable", [False, True])
def test_empty_batch_and_no_partners(capturable):
    empty = guard(capturable=capturable).filter(**scene(0))
    assert empty.action.shape == (0, 2)
    alone = guard(partner_models=[], capturable=capturable).filter(
        **scene(
            1,
            nominal=real([3.0, 0.5]),
            partner_positions=torch.zeros(1, 0, 2).double(),
            partner_velocities=torch.zeros(1, 0, 2).double(),
            partner_radii=[],
        )
    )
    assert alone.action.tolist() == [[2.0, 0.5]]
    assert alone.status.tolist() == [OPTIMAL]
    assert not alone.uncertified.item()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dt": 0.0}, "dt: expected seconds"),
        ({"cbf_gamma": -1.0}, "cbf_gamma"),
        ({"compat": "upstream"}, 'needs barrier="wae"'),
        ({"partner_models": [DoubleIntegratorControlModel("p", 2, capacity=9.0)]}, "authority abo"),
        (
            {"ego_model": JacobianControlModel("ego", 3, 2, max_cartesian_accel_value=1.0)},
            "expected a DoubleIntegratorControlModel as the ego",
        ),
        (
            {
                "partner_models": [JacobianControlModel("p", 3, 2, max_cartesian_accel_value=0.5)],
                "budget_split": "proportional",
            },
            "budget_split needs double integrators",
        ),
        ({"rate_limit": "soft"}, "expected neither rate_limit nor prediction_error"),
        ({"barrier": "wae"}, "expected barrier=\"sampled\", got 'wae'; use ExpCBFQP.ego_only"),
        ({"prediction_error": 0.1}, "expected neither rate_limit nor prediction_error"),
    ],
)
def test_bad_configurations_are_refused(changes, message):
    with pytest.raises(ConfigurationError, match=message):
        guard(**changes)


def test_ages_that_leave_no_authority_are_refused_or_flagged():
    with pytest.raises(ConfigurationError, match="authority left at max_age_s"):
        guard(max_age_s=5.0).filter(**scene(1))
    step = guard(max_age_s=5.0, capturable=True).filter(**scene(1))
    assert step.uncertified.tolist() == [True]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_filter_on_cuda_equals_the_cpu():
    given = scene(64, nominal=torch.randn(64, 2).double())
    on_gpu = {
        name: values.cuda() if isinstance(values, torch.Tensor) else values
        for name, values in given.items()
    }
    expected, step = guard().filter(**given), guard().filter(**on_gpu)
    torch.testing.assert_close(step.action.cpu(), expected.action, rtol=0.0, atol=1e-9)
