"""The batched filter at its boundary: rows by hand, Jacobians, refusals, gradients, edge sizes."""

import numpy as np
import pytest
import torch

from cadenza.core.errors import ConfigurationError, InputError
from cadenza.safety.authority import measure_authority
from cadenza.safety.batched import BatchedEgoFilter, pair_rows_batch
from cadenza.safety.batched.constants import reach_batch
from cadenza.safety.batched.status import INFEASIBLE, OPTIMAL, STATUS_NAMES
from cadenza.safety.bounds import Bounds
from cadenza.safety.control_models import DoubleIntegratorControlModel, JacobianControlModel
from cadenza.safety.filters.ego_only import EgoOnlyCBFQP
from cadenza.safety.snapshot import AgentSnapshot
from cadenza.safety.state import SafetyState

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
def test_rows_have_finite_gradients_everywhere(plant):
    # Coincident centres, exact contact, overlap, zero speed, and a state out of every set.
    offsets = real([0.0, 0.0], [0.4, 0.0], [0.1, 0.0], [1.0, 0.0], [0.5, 0.0])
    speeds = real([0.0, 0.0], [0.0, 0.0], [1.0, 0.0], [0.0, 0.0], [-9.0, 0.0])
    zero = torch.zeros_like(offsets)
    p = torch.stack((offsets, zero), 1).requires_grad_(True)
    v = torch.stack((speeds, zero), 1).requires_grad_(True)
    rows = pair_rows_batch(
        p,
        v,
        torch.tensor([0.2, 0.2], dtype=torch.float64),
        1.5,
        torch.tensor([[0, 1]]),
        DT,
        relative_accel=3.0,
        plant=plant,
    )
    (rows.level.sum() + rows.h.sum() + rows.normal.sum()).backward()
    assert bool(torch.isfinite(p.grad).all())
    assert bool(torch.isfinite(v.grad).all())


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


@pytest.mark.parametrize("d", [2, 3])
def test_jacobian_egos_equal_the_single_filter(d):
    rng = np.random.default_rng(d)
    size, n = 30, 4
    jacobians = rng.normal(size=(size, d, n))
    jacobians[0] *= 0.01  # a posture without authority
    biases = rng.normal(size=(size, d)) * 0.2
    ego = JacobianControlModel("ego", n, d, max_cartesian_accel_value=1.5)
    partners = [DoubleIntegratorControlModel(f"p{k}", d, capacity=0.3) for k in range(2)]
    batch = BatchedEgoFilter(ego_model=ego, partner_models=partners, bounds=BOUNDS, dt=DT)
    places = rng.normal(size=(size, 2, d))
    places *= rng.uniform(0.45, 1.0, size=(size, 2, 1)) / np.linalg.norm(places, axis=2)[..., None]
    speeds = rng.normal(size=(size, 2, d)) * 0.3
    velocity = rng.normal(size=(size, d)) * 0.4
    nominal = rng.uniform(-2.0, 2.0, size=(size, n))
    step = batch.filter(
        *(torch.tensor(x) for x in (nominal, np.zeros((size, d)), velocity, places, speeds)),
        0.2,
        [0.2, 0.2],
        jacobian=torch.tensor(jacobians),
        bias=torch.tensor(biases),
    )
    for i in range(size):
        model = JacobianControlModel(
            "ego",
            n,
            d,
            jacobian_fn=lambda _state, i=i: jacobians[i],
            bias_fn=lambda _state, i=i: biases[i],
            max_cartesian_accel_value=1.5,
        )
        agents = {"ego": AgentSnapshot(np.zeros(d), velocity[i], 0.2)} | {
            f"p{k}": AgentSnapshot(places[i, k], speeds[i, k], 0.2) for k in range(2)
        }
        single = EgoOnlyCBFQP(
            control_models={"ego": model} | {partner.uid: partner for partner in partners}
        )
        action, info = single.filter(
            nominal[i],
            {"agent_states": agents},
            SafetyState({("ego", "p0"): 0.0, ("ego", "p1"): 0.0}),
            BOUNDS,
            ego_uid="ego",
            partner_predicted_states={uid: agents[uid] for uid in ("p0", "p1")},
            dt=DT,
        )
        assert STATUS_NAMES[int(step.status[i])] == info["status"]
        tolerance = 1e-11 if int(step.status[i]) <= OPTIMAL else 1e-4
        np.testing.assert_allclose(step.action[i].numpy(), action, rtol=0.0, atol=tolerance)
        assert bool(step.uncertified[i]) == info["uncertified"]
        authority = measure_authority(model, agents["ego"], BOUNDS)
        reach = reach_batch(
            torch.tensor(jacobians[i : i + 1]), torch.tensor(biases[i : i + 1]), 2.0
        )
        assert reach.item() == pytest.approx(authority.reach, rel=1e-12)
    assert {OPTIMAL, INFEASIBLE} <= set(step.status.tolist())


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("nominal", torch.ones(2, 2), "ego_position: expected torch.float32"),
        ("nominal", np.ones((2, 2)), r"nominal: expected a tensor, got ndarray; .*as_tensor"),
        ("nominal", torch.ones(2).double(), r"nominal: expected shape \(B, 2\)"),
        ("partner_radii", [0.2, 0.2], "partner_radii: expected shape"),
        ("jacobian", torch.ones(2, 2, 2).double(), "expected none for a double integrator"),
        ("previous_action", real([0.0, 0.0], [torch.nan, 0.0]), "a row of NaN"),
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


@pytest.mark.parametrize("fixed_shape", [False, True])
def test_empty_batch_and_no_partners(fixed_shape):
    empty = guard(fixed_shape=fixed_shape).filter(**scene(0))
    assert empty.action.shape == (0, 2)
    alone = guard(partner_models=[], fixed_shape=fixed_shape).filter(
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
            {
                "ego_model": JacobianControlModel("ego", 3, 2, max_cartesian_accel_value=1.0),
                "budget_split": "proportional",
            },
            "budget_split needs double integrators",
        ),
    ],
)
def test_bad_configurations_are_refused(changes, message):
    with pytest.raises(ConfigurationError, match=message):
        guard(**changes)


def test_ages_that_leave_no_authority_are_refused_or_flagged():
    with pytest.raises(ConfigurationError, match="authority left at max_age_s"):
        guard(max_age_s=5.0).filter(**scene(1))
    step = guard(max_age_s=5.0, validate=False).filter(**scene(1))
    assert step.uncertified.tolist() == [True]


def test_jacobian_is_required_for_other_egos():
    ego = JacobianControlModel("ego", 2, 2, max_cartesian_accel_value=1.5)
    with pytest.raises(InputError, match="jacobian: expected shape"):
        guard(ego_model=ego).filter(**scene(1))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_filter_on_cuda_equals_the_cpu():
    given = scene(64, nominal=torch.randn(64, 2).double())
    on_gpu = {
        name: values.cuda() if isinstance(values, torch.Tensor) else values
        for name, values in given.items()
    }
    expected, step = guard().filter(**given), guard().filter(**on_gpu)
    torch.testing.assert_close(step.action.cpu(), expected.action, rtol=0.0, atol=1e-9)


# The most urgent row is met whatever the others would like.
