"""No bad number of any input reaches an action of the batched filter, or another environment."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.core.errors import InputError
from cadenza.safety.batched import BatchedEgoFilter
from cadenza.safety.batched.projection import BAD_INPUT
from cadenza.safety.contracts import Bounds
from cadenza.safety.control_models import DoubleIntegratorControlModel
from tests.campaigns import size

SIZE = 5
#: What no input may hold, and what only some may not.
NOWHERE = (math.nan, math.inf, -math.inf, 1e10, -1e10)
ELSEWHERE = {"ego_radius": (0.0, -0.2), "partner_radii": (0.0, -5.0), "age_s": (-1.0, -1e-300)}


def scene(d: int, partners: int, seed: int) -> dict[str, torch.Tensor]:
    """Return every input of the filter."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    return {
        "nominal": normal(SIZE, d),
        "ego_position": normal(SIZE, d) * 0.1,
        "ego_velocity": normal(SIZE, d) * 0.4,
        "partner_positions": normal(SIZE, partners, d),
        "partner_velocities": normal(SIZE, partners, d) * 0.3,
        "ego_radius": normal(SIZE).abs() + 0.1,
        "partner_radii": normal(SIZE, partners).abs() + 0.1,
        "lambda_": normal(SIZE, partners) * 0.1,
        "age_s": normal(SIZE, partners).abs() * 0.02,
    }


@pytest.mark.parametrize("d", [2, 3])
@settings(max_examples=size(10, 30), deadline=None)
@given(data=st.data(), partners=st.integers(1, 3), seed=st.integers(0, 10**6))
def test_bad_numbers_are_refused_or_stop_their_environment_alone(d, data, partners, seed):
    options = {
        "ego_model": DoubleIntegratorControlModel("ego", d),
        "partner_models": [
            DoubleIntegratorControlModel(f"p{k}", d, capacity=0.5) for k in range(partners)
        ],
        "bounds": Bounds(2.0, 2.0, 0.2, 0.0, 0.0),
        "dt": 0.05,
    }
    clean = scene(d, partners, seed)
    expected = BatchedEgoFilter(**options).filter(**clean)
    name = data.draw(st.sampled_from(sorted(clean)), label="input")
    value = data.draw(st.sampled_from(NOWHERE + ELSEWHERE.get(name, ())), label="value")
    row = data.draw(st.integers(0, SIZE - 1), label="environment")
    spoilt = {key: values.clone().requires_grad_(True) for key, values in clean.items()}
    with torch.no_grad():
        entries = spoilt[name][row : row + 1].view(-1)
        entries[data.draw(st.integers(0, len(entries) - 1), label="entry")] = value
    with torch.no_grad(), pytest.raises(InputError, match=f"filter: {name}: expected finite"):
        BatchedEgoFilter(**options).filter(**spoilt)
    step = BatchedEgoFilter(capturable=True, **options).filter(**spoilt)
    assert step.status[row] == BAD_INPUT
    assert step.action[row].tolist() == [0.0] * d
    assert step.uncertified[row]
    others = torch.arange(SIZE) != row
    for key, values in step._asdict().items():
        alone = getattr(expected, key)[others]
        torch.testing.assert_close(values[others], alone, rtol=0.0, atol=1e-9)
    step.action.sum().backward()
    assert all(bool(x.grad.isfinite().all()) for x in spoilt.values() if x.grad is not None)
