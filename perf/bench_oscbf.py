"""Operational-space filter of a seven-joint arm: the whole step, 20 rows and a joint box.

Ours:      the whole step, from joint positions and velocities to the command: state of the arm with
           the manipulability that the singularity rule needs, rows, solve. Beside the peers
           `solve()` alone, from a prepared state and prepared rows, where they start as well; state
           and rows are timed on lines of their own too.
Peers:     Clarabel through qpsolvers on the same cost, rows and box, solve only; and cbfpy, jitted
           and warmed up, whose barriers are the same 20 rows as affine functions of the state,
           under the velocity limits as its box, from NumPy arrays to a NumPy array.
Scenes:    random configurations, velocities and obstacles; half of the scenes with an active row or
           bound; scenes without an admissible command are left out. Rows: 6 pairs of links, 8 of a
           link and an obstacle, 5 over a table, 1 singularity margin.
Protocol:  200 calls to warm up, 5 000 timed one by one; see `perf.timing`.

Usage:  python -m perf.bench_oscbf
"""

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np
import qpsolvers
import scipy.sparse as sp

from cadenza.safety.arms import MujocoArm
from cadenza.safety.arms.arm import ArmState
from cadenza.safety.geometry import HalfSpace
from cadenza.safety.oscbf import (
    OSCBF,
    ArmConstraints,
    HalfSpaceRule,
    Obstacle,
    ObstacleRule,
    OSCBFConstraints,
    SelfCollisionRule,
    SingularityRule,
    TaskCost,
    TorqueOSCBF,
    VelocityOSCBF,
)
from cadenza.safety.oscbf.program import task_frame, velocity_box
from cadenza.safety.oscbf.rules import BarrierRows
from perf.timing import Row, measure, print_table

#: Least ratio of the medians of one solve call that we promise.
AIM = 7.0
SCENES = 200
REPEATS, WARMUP, PEER_REPEATS = 5_000, 200, 1_000
DT = 0.01
CONSTRAINTS = ArmConstraints(
    self_collision=SelfCollisionRule(nearest=6),
    obstacles=ObstacleRule(nearest=8),
    half_spaces=(
        HalfSpaceRule(name="table", solid=HalfSpace(np.array([0, 0, 1.0]), 0), nearest=5),
    ),
    singularity=SingularityRule(minimum=0.02),
)
WRAPPED_PEER = "qpsolvers + Clarabel on the same QP"
CBFPY_PEER = "cbfpy on the same rows, jitted"


@dataclass(frozen=True)
class Scene:
    """One call: state, rows, nominal, obstacles, and what the peers get."""

    state: ArmState
    obstacles: list[Obstacle]
    rows: BarrierRows
    twist: np.ndarray
    acceleration: np.ndarray
    problem: tuple[np.ndarray, ...]
    nominal: np.ndarray


class Bench:
    """The arm, its filters, and random scenes."""

    def __init__(self) -> None:
        self.arm = MujocoArm()
        self.velocity = VelocityOSCBF(self.arm, dt=DT, constraints=CONSTRAINTS)
        self.torque = TorqueOSCBF(self.arm, dt=DT, constraints=CONSTRAINTS)
        self.soft = OSCBF(n_joints=7)

    def solve_velocity(self, scene: Scene) -> object:
        return self.velocity.solve(scene.state, nu_nom=scene.twist, rows=scene.rows)

    def velocity_step(self, scene: Scene) -> object:
        state = self.arm.state(scene.state.q, scene.state.q_dot, with_manipulability=True)
        return self.velocity.solve(state, nu_nom=scene.twist, obstacles=scene.obstacles)

    def torque_step(self, scene: Scene) -> object:
        state = self.arm.state(scene.state.q, scene.state.q_dot, with_manipulability=True)
        return self.torque.solve(state, a_nom=scene.acceleration, obstacles=scene.obstacles)

    def solve_torque(self, scene: Scene) -> object:
        return self.torque.solve(scene.state, a_nom=scene.acceleration, rows=scene.rows)

    def solve_soft(self, scene: Scene) -> object:
        _, _, A, b, _, _ = scene.problem
        return self.soft.solve(
            q_dot_nom=scene.state.q_dot,
            nu_nom=scene.twist,
            jacobian=scene.state.ee_jacobian,
            constraints=OSCBFConstraints(A, b),
        )

    def scenes(self, rng: np.random.Generator) -> list[Scene]:
        """Return as many scenes with an active row or bound as without, in random order."""
        found: dict[str, list[Scene]] = {"inactive": [], "optimal": []}
        while min(map(len, found.values())) < SCENES // 2:
            scene = self.draw(rng)
            by_velocity = self.velocity.solve(scene.state, nu_nom=scene.twist, rows=scene.rows)
            by_torque = self.torque.solve(scene.state, a_nom=scene.acceleration, rows=scene.rows)
            if not (by_velocity.certified and by_torque.certified):
                continue
            kind = found[by_velocity.solver_status]
            if len(kind) < SCENES // 2:
                kind.append(scene)
        scenes = found["inactive"] + found["optimal"]
        return [scenes[k] for k in rng.permutation(len(scenes))]

    def draw(self, rng: np.random.Generator) -> Scene:
        q = self.arm.home() + rng.uniform(-0.4, 0.4, 7)
        state = self.arm.state(q, rng.normal(size=7) * 0.15, with_manipulability=True)
        center = state.ee_position + rng.normal(size=3) * 0.25
        obstacles = [Obstacle.ball("ball", center, 0.06, velocity=rng.normal(size=3) * 0.05)]
        rows = self.velocity.rows(state, obstacles)
        twist = state.ee_jacobian @ (state.q_dot + rng.normal(size=7) * rng.choice([0.01, 0.2]))
        acceleration = rng.normal(size=6) * rng.choice([0.3, 6.0])
        problem = self.problem(state, rows, twist)
        nominal = np.linalg.solve(problem[0], -problem[1])
        return Scene(state, obstacles, rows, twist, acceleration, problem, nominal)

    def problem(
        self, state: ArmState, rows: BarrierRows, twist: np.ndarray
    ) -> tuple[np.ndarray, ...]:
        """Return P, q, A, b, lower and upper of the velocity filter's programme."""
        frame = task_frame(TaskCost(), state)
        nominal = frame.command(twist, np.zeros(7))
        box = velocity_box(
            self.arm.limits,
            state.q,
            state.q_dot,
            dt=DT,
            gain=CONSTRAINTS.joint_gain,
            braking_share=CONSTRAINTS.braking_share,
        )
        A, b = rows.velocity_rows()
        return frame.P, -(frame.P @ nominal), A, b, box.lower, box.upper


def rows() -> list[Row]:
    """Return all measurements of the operational-space filter."""
    bench = Bench()
    scenes = bench.scenes(np.random.default_rng(0))
    velocity = measure(over(scenes, bench.solve_velocity), REPEATS, warmup=WARMUP)
    torque = measure(over(scenes, bench.solve_torque), REPEATS, warmup=WARMUP)
    soft = measure(over(scenes, bench.solve_soft), REPEATS, warmup=WARMUP)
    wrapped = measure(over(scenes, solve_with_qpsolvers), PEER_REPEATS)
    build = measure(
        over(scenes, lambda s: bench.velocity.rows(s.state, s.obstacles)), REPEATS, warmup=WARMUP
    )
    state = measure(
        over(
            scenes,
            lambda s: bench.arm.state(s.state.q, s.state.q_dot, with_manipulability=True),
        ),
        REPEATS,
        warmup=WARMUP,
    )
    whole = measure(over(scenes, bench.velocity_step), REPEATS, warmup=WARMUP)
    whole_torque = measure(over(scenes, bench.torque_step), REPEATS, warmup=WARMUP)
    name = "7 joints, 20 rows"
    table = [
        Row(
            f"velocity, {name}: p50",
            velocity.p50,
            wrapped.p50,
            aim=AIM,
            peer_name=WRAPPED_PEER,
        ),
        Row(f"velocity, {name}: p99", velocity.p99, wrapped.p99, peer_name=WRAPPED_PEER),
        Row(f"torque, {name} and 14 of torque: p50", torque.p50),
        Row(f"all rows soft, {name}: p50", soft.p50),
        Row("velocity, whole step: p50", whole.p50),
        Row("velocity, whole step: p99", whole.p99),
        Row("torque, whole step: p50", whole_torque.p50),
        Row("torque, whole step: p99", whole_torque.p99),
        Row("building the 20 rows: p50", build.p50),
        Row(f"state of the arm, {len(bench.arm.sphere_radii)} spheres: p50", state.p50),
    ]
    cbfpy = cbfpy_filter(bench)
    if cbfpy is not None:
        peer = measure(over(scenes, cbfpy), PEER_REPEATS)
        table.insert(1, Row(f"velocity, {name}: p50", velocity.p50, peer.p50, peer_name=CBFPY_PEER))
    return table


def over(scenes: list[Scene], use: Callable[[Scene], object]) -> Callable[[], object]:
    """Return a call that takes the next scene each time."""
    endless = cycle(scenes)
    return lambda: use(next(endless))


def solve_with_qpsolvers(scene: Scene) -> object:
    P, q, A, b, lower, upper = scene.problem
    return qpsolvers.solve_qp(
        sp.csc_matrix(P), q, sp.csc_matrix(A), b, lb=lower, ub=upper, solver="clarabel"
    )


def cbfpy_filter(bench: Bench) -> Callable[[Scene], np.ndarray] | None:
    """Return cbfpy's filter of one scene, or None where it is not installed.

    The rows come as arguments: h(z) = level / alpha + gradient @ (z - q) has exactly our row as its
    condition h' >= -alpha h at z = q, so cbfpy solves the same programme without our joint box,
    which it takes once at construction.
    """
    # What cbfpy recommends for one core; read when JAX is imported.
    os.environ.setdefault("JAX_ENABLE_X64", "1")
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        cbfs, jnp = importlib.import_module("cbfpy"), importlib.import_module("jax.numpy")
    except ImportError:
        print(
            "note: cbfpy is not installed (pip install 'cadenza[bench-jax]'); its row is left out"
        )
        return None
    gain, base = 5.0, cbfs.CBFConfig

    class Arm(base):
        def __init__(self) -> None:
            most = bench.arm.limits.velocity
            first = (jnp.zeros((20, 7)), jnp.ones(20), jnp.zeros(7), jnp.eye(7))
            super().__init__(n=7, m=7, u_min=-most, u_max=most, relax_qp=False, init_args=first)

        def f(self, *_: Any) -> Any:
            return jnp.zeros(7)

        def g(self, *_: Any) -> Any:
            return jnp.eye(7)

        def h_1(self, z: Any, gradient: Any, level: Any, q: Any, _cost: Any) -> Any:
            return level / gain + gradient @ (z - q)

        def alpha(self, h: Any, *_: Any) -> Any:
            return gain * h

        def quadratic(self, _z: Any, _u: Any, *rows_and_cost: Any) -> Any:
            return rows_and_cost[-1]

        def linear(self, _z: Any, u: Any, *rows_and_cost: Any) -> Any:
            return -rows_and_cost[-1] @ u

        P, q = quadratic, linear

    cbf = cbfs.CBF.from_config(Arm())

    def solve(scene: Scene) -> np.ndarray:
        P, _, A, b, _, _ = scene.problem
        q = scene.state.q
        return np.asarray(cbf.safety_filter(q, scene.nominal, -A, b, q, P))

    return solve


if __name__ == "__main__":
    print_table((__doc__ or "").splitlines()[0], rows())
