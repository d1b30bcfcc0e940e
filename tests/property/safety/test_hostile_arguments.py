"""Numbers that are none, handed to every public door: refused by name, never executed."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from cadenza.core.errors import CadenzaError
from cadenza.safety.batched import BatchedEgoFilter, project_batch
from cadenza.safety.cbf_qp import ExpCBFQP
from cadenza.safety.contracts import Bounds, SafetyState
from cadenza.safety.control_models import DoubleIntegratorControlModel
from cadenza.safety.runtime.runtime import SafetyRuntime
from cadenza.safety.snapshot import AgentBatch, AgentSnapshot
from cadenza.safety.wrappers import SafetyFilterWrapper, VectorSafetyFilterWrapper
from tests.campaigns import size
from tests.unit.safety.wrappers.plane_env import PlaneEnv, task

DT, PAIR, CALLS = 0.05, ("ego", "p"), size(4_000, 20_000)
BOUNDS = Bounds(2.0, 2.0, 1.0, 0.0, 0.0)
MODELS = {
    "ego": DoubleIntegratorControlModel("ego", 2),
    "p": DoubleIntegratorControlModel("p", 2, capacity=0.5),
}
HUGE, REST = 10**400, np.zeros(2)
NO_NUMBER = (True, np.True_, "0.2", b"1", 0.2j, HUGE, -HUGE, np.ma.masked, np.nan, {}, object)


def no_array(shape: tuple[int, ...], rng: np.random.Generator) -> Any:
    """Something that has the shape, or none, but is no array of finite real numbers."""
    ones = np.ones(shape)
    return one_of(
        [
            np.ma.masked_array(ones, mask=rng.random() < 0.5),
            ones.astype(complex),
            ones.astype(bool),
            ones.astype(str),
            np.full(shape, HUGE, dtype=object),
            np.full(shape, None, dtype=object),
            np.full(shape, one_of([np.nan, np.inf, -np.inf, 1e300], rng)),
            np.ones((*shape, 1)),
            ones.astype("datetime64[s]"),
            [True] * shape[0],
            [HUGE] * shape[0],
            ["1"] * shape[0],
            torch.ones(shape).to(torch.complex64),
            torch.ones(shape, requires_grad=True).bool(),
            None,
            *NO_NUMBER,
        ],
        rng,
    )


def no_tensor(shape: tuple[int, ...], rng: np.random.Generator) -> Any:
    """The same for arguments that are tensors, where an honest NumPy array is none either."""
    tensors = [torch.ones(shape, dtype=kind) for kind in (torch.complex64, torch.bool, torch.int64)]
    plain = [x for x in NO_NUMBER if not isinstance(x, float)]
    infinite = torch.full(shape, -torch.inf).double()
    return one_of([*tensors, *plain, infinite, np.ones(shape), np.ones(shape).tolist()], rng)


def agents() -> dict[str, AgentSnapshot]:
    still = np.zeros(2)
    return {
        "ego": AgentSnapshot(still, still, 0.2),
        "p": AgentSnapshot(np.array([1.0, 0.0]), still, 0.2),
    }


def tensor(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.float64)


class Doors:
    """Every door by name: a call with one argument replaced, and what replaces it."""

    def __init__(self) -> None:
        self.runtime = SafetyRuntime(
            ego_uid="ego", control_models=MODELS, bounds=BOUNDS, control_timestep=DT
        )
        self.ego = ExpCBFQP.ego_only(control_models=MODELS, rate_limit="soft")
        self.joint = ExpCBFQP.centralized(control_models=MODELS, dt=DT)
        self.batched = BatchedEgoFilter(
            ego_model=MODELS["ego"], partner_models=[MODELS["p"]], bounds=BOUNDS, dt=DT
        )
        self.wrapper = SafetyFilterWrapper(PlaneEnv(), **task())
        self.wrapper.reset(seed=0)
        given = {name: value for name, value in task(1).items() if name != "snapshots"}
        self.vector = VectorSafetyFilterWrapper(
            _vector_env(), agents=lambda env, obs, info: _batch(), **given
        )
        self.vector.reset(seed=0)

    def snapshot(self, **bad):
        AgentSnapshot(
            **{"position": np.zeros(2), "velocity": np.zeros(2), "radius": 0.2, "age_s": 0.0} | bad
        )

    def bounds(self, **bad):
        names = ("action_linf_component", "cartesian_accel_capacity", "action_rate")
        Bounds(**dict.fromkeys(names, 1.0) | {"comm_latency_ms": 0.0, "force_limit": 0.0} | bad)

    def batch(self, **bad):
        _batch(**bad)

    def runtime_step(self, action=REST, force=None):
        self.runtime.step(action, agents(), contact_forces={} if force is None else {PAIR: force})

    def runtime_step_from_obs(self, age):
        obs = {"agent_states": agents(), "comm": {"aoi": {"p": age}}}
        self.runtime.step_from_obs(np.zeros(2), obs)

    def ego_filter(self, action=REST, dt=DT, lambda_=0.0, previous=None):
        self.ego.filter(
            action,
            {"agent_states": agents()},
            SafetyState({PAIR: lambda_}),
            BOUNDS,
            ego_uid="ego",
            partner_predicted_states={"p": agents()["p"]},
            dt=dt,
            previous_action=previous,
        )

    def joint_filter(self, action=REST, lambda_=0.0):
        proposed = {"ego": action, "p": np.zeros(2)}
        self.joint.filter(
            proposed, {"agent_states": agents()}, SafetyState({PAIR: lambda_}), BOUNDS
        )

    def batched_filter(self, **bad):
        self.batched.filter(**_batched_scene() | bad)

    def projection(self, **bad):
        given = {"u_hat": tensor(3, 2), "A": tensor(3, 1, 2), "b": tensor(3, 1), "lo": -1.0}
        project_batch(**given | bad)

    def wrapped_step(self, action):
        self.wrapper.step(action)

    def wrapped_vector_step(self, action):
        self.vector.step(action)


def _batched_scene() -> dict[str, Any]:
    return {
        "nominal": tensor(3, 2),
        "ego_position": tensor(3, 2) * 0.0,
        "ego_velocity": tensor(3, 2) * 0.0,
        "partner_positions": tensor(3, 1, 2),
        "partner_velocities": tensor(3, 1, 2) * 0.0,
        "ego_radius": 0.2,
        "partner_radii": [0.2],
        "lambda_": tensor(3, 1),
        "age_s": tensor(3, 1),
    }


def _batch(**bad: Any) -> AgentBatch:
    places = np.tile(np.array([[0.0, 0.0], [1.0, 0.0]]), (2, 1, 1))
    still, radii, ages = np.zeros((2, 2, 2)), np.full(2, 0.2), np.zeros((2, 2))
    given = {"positions": places, "velocities": still, "radii": radii, "ages_s": ages}
    return AgentBatch(**{"uids": ("ego", "disc_0"), **given} | bad)


def _vector_env():
    from gymnasium.vector import SyncVectorEnv

    return SyncVectorEnv([lambda: PlaneEnv(1)] * 2)


ARRAYS = {
    "snapshot": {"position": (2,), "velocity": (2,)},
    "batch": {"positions": (2, 2, 2), "velocities": (2, 2, 2), "radii": (2,)},
    "runtime_step": {"action": (2,)},
    "ego_filter": {"action": (2,)},
    "joint_filter": {"action": (2,)},
    "wrapped_step": {"action": (2,)},
    "wrapped_vector_step": {"action": (2, 2)},
    "batched_filter": {"partner_radii": (1,)},
}
NUMBERS = {
    "snapshot": ["radius", "age_s"],
    "bounds": ["action_linf_component", "cartesian_accel_capacity", "action_rate", "force_limit"],
    "runtime_step": ["force"],
    "runtime_step_from_obs": ["age"],
    "ego_filter": ["dt", "lambda_", "previous"],
    "joint_filter": ["lambda_"],
    "batched_filter": ["ego_radius"],
    "projection": ["lo"],
}
TENSORS = {
    "projection": {"u_hat": (3, 2), "A": (3, 1, 2), "b": (3, 1)},
    "batched_filter": {
        name: tuple(values.shape)
        for name, values in _batched_scene().items()
        if isinstance(values, torch.Tensor)
    },
}


@pytest.mark.filterwarnings("ignore")
def test_no_number_that_is_none_passes_a_door_or_fails_without_words():
    rng, doors = np.random.default_rng(0), Doors()
    cases = [
        *((door, name, None, lambda _, rng: one_of(NO_NUMBER, rng))
          for door, names in NUMBERS.items() for name in names),
        *((door, name, shape, no_array)
          for door, names in ARRAYS.items() for name, shape in names.items()),
        *((door, name, shape, no_tensor)
          for door, names in TENSORS.items() for name, shape in names.items()),
    ]  # fmt: skip
    for _ in range(CALLS):
        door, name, shape, make = one_of(cases, rng)
        value = make(shape, rng)
        error = refusal(getattr(doors, door), {name: value})
        clear = isinstance(error, CadenzaError) or str(error).startswith("filter: ")
        assert clear, (door, name, value, error)
        assert re.search("expected|must be", str(error)), (door, name, value, error)


def refusal(door: Callable[..., None], arguments: dict[str, Any]) -> Exception | None:
    """Return the error that a call ends in; None if it was accepted."""
    try:
        door(**arguments)
    except (CadenzaError, TypeError) as error:
        return error
    return None


def one_of(choices: Sequence[Any], rng: np.random.Generator) -> Any:
    return choices[rng.integers(len(choices))]


def test_wrappers_never_execute_what_lies_under_a_mask():
    env = PlaneEnv()
    guarded = SafetyFilterWrapper(env, **task())
    guarded.reset(seed=0)
    hidden = np.ma.masked_array(np.full(2, 0.5, dtype=np.float32), mask=[True, False])
    with pytest.raises(CadenzaError, match=r"ego's action: expected real numbers without a mask"):
        guarded.step(hidden)
    assert env.executed == []
