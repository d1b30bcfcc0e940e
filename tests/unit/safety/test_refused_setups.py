"""What can never run is refused where it is built, and every door names the argument it refuses."""

import re

import numpy as np
import pytest
import torch

from cadenza.core.errors import CadenzaError, ConfigurationError, InputError
from cadenza.safety import (
    AgentBatch,
    BatchedEgoFilter,
    Bounds,
    DifferentialDriveControlModel,
    DoubleIntegratorControlModel,
    ExpCBFQP,
    JacobianControlModel,
    JacobianEmergencyController,
    SafetyDriver,
    SafetyOptions,
    SafetyRuntime,
    SafetyState,
)
from cadenza.safety.affine import AffineCBFFilter, DoubleIntegrator, JointDynamics, keep_out_ball
from cadenza.safety.batched import project_batch
from cadenza.safety.braking import maybe_brake
from cadenza.safety.cbf_qp import pair_h_value
from cadenza.safety.control_models import BodyDrive
from cadenza.safety.oscbf import VelocityOSCBF
from cadenza.safety.verifier import VerifierConfig
from cadenza.safety.wrappers import SafetyFilterWrapper, VectorSafetyFilterWrapper
from tests.unit.safety.scenes import agent, models
from tests.unit.safety.wrappers.plane_env import HookedPlaneEnv, PlaneEnv, task

BOUNDS = Bounds(2.0, 2.0, 1.0, 0.0, 0.0)
MODELS = models(0.5, 2, ("p",))
EGO, PARTNER = MODELS["ego"], MODELS["p"]


def runtime(control_models, dt=0.1, **options):
    return SafetyRuntime(
        ego_uid="ego",
        control_models=control_models,
        bounds=BOUNDS,
        control_timestep=dt,
        options=SafetyOptions(**options),
    )


def arm(uid, capacity, n=2):
    return JacobianControlModel(uid, n, 2, lambda _: np.eye(2), max_cartesian_accel_value=capacity)


# Set-ups without a step


@pytest.mark.parametrize(
    ("control_models", "options", "message"),
    [
        ({"ego": DoubleIntegratorControlModel("ego", 2), "p": DoubleIntegratorControlModel("p", 2)},
         {}, r"got 2 m/s\^2 against 2 m/s\^2 of 'p'"),
        ({"ego": arm("ego", 1.0), "p": arm("p", 1.0)}, {}, r"got 1 m/s\^2 against 1 m/s\^2"),
        ({"ego": arm("ego", 1.0), "p": PARTNER, "q": DoubleIntegratorControlModel("q", 2, 0.5)},
         {"multi_partner": "passive"}, "expected a DoubleIntegratorControlModel of 'ego'"),
        ({"ego": DoubleIntegratorControlModel("ego", 2, 0.0),
          "p": DoubleIntegratorControlModel("p", 2, 0.0)},
         {"barrier": "wae", "compat": "upstream"}, "of one of them at least, got 0"),
        ({"ego": EGO, "p": DoubleIntegratorControlModel("p", 3, 0.5)}, {},
         "in the 2 dimensions of 'ego', got 3 of 'p'"),
    ],
)  # fmt: skip
def test_agents_between_whom_no_step_can_run_are_refused_at_construction(
    control_models, options, message
):
    with pytest.raises(ConfigurationError, match=message):
        runtime(control_models, **options)


def test_an_ego_that_some_posture_makes_strong_enough_is_built():
    runtime({"ego": arm("ego", 1.0), "p": PARTNER}).step(
        np.zeros(2), {"ego": agent([0, 0]), "p": agent([3, 0])}
    )


def test_filter_of_all_agents_refuses_several_spaces():
    mixed = {"a": DoubleIntegratorControlModel("a", 2), "b": DoubleIntegratorControlModel("b", 3)}
    for build in (ExpCBFQP.ego_only, ExpCBFQP.centralized, ExpCBFQP.shared_control):
        with pytest.raises(ConfigurationError, match="in the 2 dimensions of 'a', got 3 of 'b'"):
            build(control_models=mixed)
    with pytest.raises(ConfigurationError, match="in the 2 dimensions of 'ego', got 3 of 'b'"):
        BatchedEgoFilter(ego_model=EGO, partner_models=[mixed["b"]], bounds=BOUNDS, dt=0.1)


def test_snapshots_of_two_spaces_are_no_pair():
    flat, solid = agent([0, 0]), agent([2, 0, 0])
    message = "both in the plane or both in space, got 2 and 3 dimensions"
    with pytest.raises(InputError, match=message):
        pair_h_value(flat, solid, alpha_pair=1.0)
    with pytest.raises(InputError, match=message):
        maybe_brake({"ego": np.zeros(2)}, {"ego": flat, "p": solid}, bounds=BOUNDS)


# a_p dt^2 = 0.5 * 2.2^2 = 2.42 m needs a contact distance of 0.403 m.
LONG_DT, WIDE, NARROW = 2.2, 0.5, 0.3


def scene(radius, velocity=(0.0, 0.0)):
    partner = agent([40.0, 0.0], velocity)
    return {"ego": agent([0, 0]), "p": type(partner)(partner.position, partner.velocity, radius)}


@pytest.mark.parametrize("options", [{}, {"multi_partner": "rows", "rate_limit": "soft"}])
def test_control_step_is_compared_with_the_radii_of_every_step(options):
    own = agent([0, 0]).radius
    guard = runtime(MODELS, LONG_DT, **options)
    for _ in range(3):
        guard.step(np.zeros(2), scene(WIDE - own))
    with pytest.raises(ConfigurationError, match=r"a_p dt\^2 <= 6 D.*at a contact distance of 0.3"):
        guard.step(np.zeros(2), scene(NARROW - own))
    guard.step(np.zeros(2), scene(WIDE - own))  # nothing is left of the refusal
    with pytest.raises(ConfigurationError, match=r"a_p dt\^2 <= 6 D"):
        runtime(MODELS, LONG_DT, **options).step(np.zeros(2), scene(NARROW - own))
    assert runtime(MODELS, LONG_DT, margin_m=0.2).step(np.zeros(2), scene(NARROW - own))


def test_verification_refuses_a_step_in_which_its_partner_outturns_the_ego():
    with pytest.raises(ConfigurationError, match=r"got dt = 1 s with 4 m/s\^2 and 0.5 m"):
        VerifierConfig(dts=(1.0,), ego_accel=5.0, partner_accel=4.0, margin_m=0.1)
    VerifierConfig(dts=(1.0,), ego_accel=5.0, partner_accel=4.0, margin_m=0.3)


# Arguments of another kind


F = torch.float64
STEP = {
    "nominal": torch.zeros(3, 2, dtype=F),
    "ego_position": torch.zeros(3, 2, dtype=F),
    "ego_velocity": torch.zeros(3, 2, dtype=F),
    "partner_positions": torch.full((3, 1, 2), 2.0, dtype=F),
    "partner_velocities": torch.zeros(3, 1, 2, dtype=F),
    "ego_radius": 0.2,
    "partner_radii": [0.2],
}
BATCHED = {"ego_model": EGO, "partner_models": [PARTNER], "bounds": BOUNDS, "dt": 0.1}
PROJECTION = {
    "u_hat": torch.zeros(3, 2, dtype=F),
    "A": torch.ones(3, 1, 2, dtype=F),
    "b": torch.zeros(3, 1, dtype=F),
}
CALL = {
    "proposed_action": np.zeros(2),
    "obs": {"agent_states": {"ego": agent([0, 0]), "p": agent([3, 0])}},
    "state": SafetyState({("ego", "p"): 0.0}),
    "bounds": BOUNDS,
    "ego_uid": "ego",
    "partner_predicted_states": {"p": agent([3, 0])},
    "dt": 0.1,
}
FILTER = ExpCBFQP.ego_only(control_models=MODELS)
VALUES = {"agents": CALL["obs"]["agent_states"], "bounds": BOUNDS, "ego_uid": "ego", "dt": 0.1}
RUNTIME = {
    "ego_uid": "ego",
    "control_models": MODELS,
    "bounds": BOUNDS,
    "control_timestep": 0.1,
    "plant": "zoh",
}
DRIVER = {"env": HookedPlaneEnv(), "ego_uid": "ego", "options": SafetyOptions()}
ROBOT = DoubleIntegrator(2)
AFFINE = {"dynamics": ROBOT, "barriers": [keep_out_ball([3.0, 0.0], 1.0)], "box": (-1.0, 1.0)}
DRIVE = {"uid": "a", "heading_fn": lambda _: 0.0, "look_ahead_m": 0.1, "drive": BodyDrive(1.0, 1.0)}
ARM = {"uid": "a", "action_dim": 2, "position_dim": 2, "jacobian_fn": lambda _: np.eye(2)}
BATCH = {
    "uids": ("a", "b"),
    "positions": np.zeros((1, 2, 2)),
    "velocities": np.zeros((1, 2, 2)),
    "radii": np.ones(2),
}
DOORS = {
    "BatchedEgoFilter": (BatchedEgoFilter, BATCHED | {"capturable": False}),
    "BatchedEgoFilter.filter": (BatchedEgoFilter(**BATCHED).filter, STEP),
    "project_batch": (project_batch, PROJECTION | {"capturable": False}),
    "EgoOnlyCBFQP.filter": (FILTER.filter, CALL),
    "EgoOnlyCBFQP.barrier_values": (FILTER.barrier_values, VALUES),
    "SafetyRuntime": (SafetyRuntime, RUNTIME),
    "SafetyDriver": (SafetyDriver.from_env, DRIVER),
    "SafetyFilterWrapper": (lambda **task: SafetyFilterWrapper(PlaneEnv(), **task), task()),
    "AffineCBFFilter": (AffineCBFFilter, AFFINE | {"fallback": "zero", "max_degree": 3}),
    "keep_out_ball": (keep_out_ball, {"center": [0.0, 0.0], "radius": 1.0, "position": (0, 1)}),
    "JointDynamics": (JointDynamics, {"agents": [ROBOT]}),
    "DifferentialDrive": (DifferentialDriveControlModel, DRIVE),
    "JacobianControlModel": (JacobianControlModel, ARM),
    "emergency of a Jacobian": (JacobianEmergencyController, {"control_model": EGO}),
    "VelocityOSCBF": (VelocityOSCBF, {"arm": None, "dt": 0.1}),
    "VerifierConfig": (VerifierConfig, {"dts": (0.1,), "steps": 10, "stationary": True}),
    "AgentBatch": (AgentBatch, BATCH),
}
JUNK = ["x", "no", -1.5, object(), [None], {"a": None}, np.full(3, np.nan)]


@pytest.mark.parametrize("door", DOORS)
def test_no_door_takes_what_is_of_another_kind(door):
    call, sound = DOORS[door]
    for name in sound:
        for junk in JUNK:
            if isinstance(junk, str) and name in ("uid", "ego_uid"):
                continue  # any text is the id of somebody
            with pytest.raises((CadenzaError, TypeError)) as raised:
                call(**{**sound, name: junk})
            said = str(raised.value)
            known = isinstance(raised.value, CadenzaError) or "must be an array" in said
            assert known, (name, junk, said)
            assert re.search("expected|must be", said), (name, junk, said)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: BatchedEgoFilter(**BATCHED | {"dt": "x"}), "dt: expected seconds in .*'x'"),
        (lambda: BatchedEgoFilter(**BATCHED, capturable="no"), "capturable: expected bool, got"),
        (lambda: BatchedEgoFilter(**BATCHED).filter(**STEP | {"partner_positions": None}),
         "partner_positions: expected a tensor, got NoneType"),
        (lambda: project_batch(**PROJECTION, capturable=1), "capturable: expected bool, got 1"),
        (lambda: SafetyFilterWrapper(PlaneEnv(), **task() | {"snapshots": "here"}),
         "snapshots: expected Callable, got 'here'"),
        (lambda: VectorSafetyFilterWrapper(None, agents=3), "VectorEnv"),
        (lambda: SafetyRuntime(**RUNTIME, emergency_controllers={"ego": "brake"}),
         "emergency_controllers\\[.ego.\\]: expected an EmergencyController"),
    ],
)  # fmt: skip
def test_refusals_name_the_argument_and_what_came(call, message):
    with pytest.raises((CadenzaError, TypeError), match=message):
        call()
