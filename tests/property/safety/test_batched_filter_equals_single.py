"""The batched filter takes the decisions of the filter of one environment, option by option."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.safety.batched.filter import BatchedEgoFilter, BatchedStep
from cadenza.safety.batched.projection import OPTIMAL, STATUS_NAMES
from cadenza.safety.contracts import Bounds, FilterInfo, SafetyState
from cadenza.safety.control_models import DoubleIntegratorControlModel
from cadenza.safety.errors import ConcertoSafetyInfeasible
from cadenza.safety.filters.compat import ego_filter
from cadenza.safety.snapshot import AgentSnapshot

ENVIRONMENTS = 12
DT = 0.05
BOUNDS = Bounds(2.0, 2.0, 0.8, 0.0, 0.0)
EGO_RADIUS = 0.2
#: Options, and which optional arguments of a call they are compared with.
CASES: dict[str, tuple[dict[str, Any], frozenset[str]]] = {
    "default": ({}, frozenset()),
    "semi-implicit with margin and lambda": (
        {"plant": "semi_implicit", "margin_m": 0.01},
        frozenset({"lambda"}),
    ),
    "gamma": ({"cbf_gamma": 2.0}, frozenset({"lambda"})),
    "undeclared ages": ({}, frozenset({"ages"})),
    "declared ages": ({"max_age_s": 0.1}, frozenset({"ages", "lambda"})),
    "shared rows": ({"budget_split": "proportional"}, frozenset({"lambda"})),
    "passive": ({"multi_partner": "passive", "contact_speed": 0.1}, frozenset({"lambda"})),
}
#: How often the scenes are repeated in one batch: the hard ones of a small batch are solved one by
#: one, those of a large one together.
COPIES = (1, 12)


@dataclass
class Crowd:
    """Random scenes of an ego among N partners; some partners overlap the ego."""

    partners: int
    dim: int
    with_: frozenset[str]
    seed: int

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        shape = (ENVIRONMENTS, self.partners, self.dim)
        directions = rng.normal(size=shape)
        directions /= np.linalg.norm(directions, axis=-1, keepdims=True)
        self.uids = [f"p{k}" for k in range(self.partners)]
        self.positions = directions * rng.uniform(0.3, 1.6, size=(*shape[:2], 1))
        self.velocities = rng.normal(size=shape) * 0.3
        self.ego_velocity = rng.normal(size=(ENVIRONMENTS, self.dim)) * 0.4
        self.ego_position = rng.normal(size=(ENVIRONMENTS, self.dim)) * 1e-3
        self.nominal = rng.uniform(-2.5, 2.5, size=(ENVIRONMENTS, self.dim))
        self.radii = rng.uniform(0.1, 0.25, self.partners)
        self.lambda_ = rng.normal(size=shape[:2]) * ("lambda" in self.with_)
        ages = np.where(rng.random(shape[:2]) < 0.3, 0.0, rng.uniform(0.0, 0.12, shape[:2]))
        self.ages = ages * ("ages" in self.with_)

    def models(self) -> dict[str, DoubleIntegratorControlModel]:
        ego = {"ego": DoubleIntegratorControlModel("ego", self.dim)}
        return ego | {
            uid: DoubleIntegratorControlModel(uid, self.dim, capacity=0.3 + 0.1 * k)
            for k, uid in enumerate(self.uids)
        }

    def batch(self, options: dict[str, Any], copies: int = 1) -> BatchedStep:
        models = self.models()
        guard = BatchedEgoFilter(
            ego_model=models["ego"],
            partner_models=[models[uid] for uid in self.uids],
            bounds=BOUNDS,
            dt=DT,
            **options,
        )
        given = {
            "lambda_": self.lambda_ if "lambda" in self.with_ else None,
            "age_s": self.ages if "ages" in self.with_ else None,
        }

        def repeated(values: np.ndarray) -> torch.Tensor:
            return torch.tensor(np.concatenate([values] * copies))

        return guard.filter(
            repeated(self.nominal),
            repeated(self.ego_position),
            repeated(self.ego_velocity),
            repeated(self.positions),
            repeated(self.velocities),
            EGO_RADIUS,
            self.radii.tolist(),
            **{name: None if value is None else repeated(value) for name, value in given.items()},
        )

    def single(self, i: int, options: dict[str, Any]) -> tuple[np.ndarray, FilterInfo] | None:
        """Return the single filter's answer in environment ``i``; None where it raises."""
        guard = ego_filter(control_models=self.models(), **options)
        ego = AgentSnapshot(self.ego_position[i], self.ego_velocity[i], EGO_RADIUS)
        agents, ahead = {"ego": ego}, {}
        for k, uid in enumerate(self.uids):
            place, speed, radius = self.positions[i, k], self.velocities[i, k], self.radii[k]
            agents[uid] = AgentSnapshot(place, speed, radius, age_s=self.ages[i, k])
            ahead[uid] = AgentSnapshot(place, speed, radius)
        state = SafetyState({("ego", uid): self.lambda_[i, k] for k, uid in enumerate(self.uids)})
        try:
            return guard.filter(
                self.nominal[i],
                {"agent_states": agents},
                state,
                BOUNDS,
                ego_uid="ego",
                partner_predicted_states=ahead,
                dt=DT,
            )
        except ConcertoSafetyInfeasible:
            return None


@pytest.mark.parametrize("copies", COPIES)
@pytest.mark.parametrize("case", CASES)
@given(seed=st.integers(0, 10**6), partners=st.integers(1, 5), dim=st.sampled_from([2, 3]))
@settings(max_examples=8, deadline=None)
def test_batch_equals_single_filter(
    case: str, copies: int, seed: int, partners: int, dim: int
) -> None:
    options, with_ = CASES[case]
    crowd = Crowd(max(partners, 2) if case == "passive" else partners, dim, with_, seed)
    step = crowd.batch(options, copies)
    for i in range(ENVIRONMENTS):
        answer = crowd.single(i, options)
        if answer is None:
            assert int(step.status[i]) > OPTIMAL
            continue
        action, info = answer
        assert STATUS_NAMES[int(step.status[i])] == info["status"]
        tolerance = 1e-12 if int(step.status[i]) <= OPTIMAL else 1e-8
        if tolerance == 1e-12 and (step.lambda_[i].numpy() != crowd.lambda_[i]).any():
            tolerance = 1e-9  # held at 1e-9 from infeasibility, where rounding is amplified
        np.testing.assert_allclose(step.action[i].numpy(), action, rtol=0.0, atol=tolerance)
        np.testing.assert_allclose(step.slack[i].numpy(), info["slack"], rtol=1e-9, atol=tolerance)
        np.testing.assert_allclose(step.margin[i].numpy(), info["margin"], rtol=0.0, atol=1e-14)
        rate = options.get("cbf_gamma", 5.0)  # at which the row undoes overlap, 1/s
        h, margin = step.h[i].numpy(), step.margin[i].numpy()
        violation = np.maximum(0.0, np.maximum(-h, -rate * margin))
        np.testing.assert_allclose(violation, info["constraint_violation"], rtol=1e-13, atol=1e-13)
        np.testing.assert_allclose(
            step.lambda_[i].numpy(), list(info["lambda"].values()), rtol=0.0, atol=1e-12
        )
        assert float(step.intervention[i]) == pytest.approx(info["intervention"], abs=tolerance)
        assert bool(step.uncertified[i]) == info["uncertified"]


@given(seed=st.integers(0, 10**6), dim=st.sampled_from([2, 3]))
@settings(max_examples=10, deadline=None)
def test_float32_rows_are_met_to_float32(seed: int, dim: int) -> None:
    crowd = Crowd(2, dim, frozenset(), seed)
    exact = crowd.batch({})
    models = crowd.models()
    guard = BatchedEgoFilter(
        ego_model=models["ego"],
        partner_models=[models[uid] for uid in crowd.uids],
        bounds=BOUNDS,
        dt=DT,
    )
    single = guard.filter(
        *(
            torch.tensor(values, dtype=torch.float32)
            for values in (
                crowd.nominal,
                crowd.ego_position,
                crowd.ego_velocity,
                crowd.positions,
                crowd.velocities,
            )
        ),
        EGO_RADIUS,
        crowd.radii.tolist(),
    )
    assert single.action.dtype == torch.float32
    torch.testing.assert_close(single.h.double(), exact.h, rtol=1e-4, atol=1e-5)
    both = (single.status <= OPTIMAL) & (exact.status <= OPTIMAL)
    difference = (single.action.double() - exact.action).abs().amax(1)[both]
    assert bool((difference <= 5e-3).all())  # 1e-6 m/s over dt, over the sine of two normals
