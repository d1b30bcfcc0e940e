"""Emergency actions: away from every dangerous partner, as hard as the actuators allow.

`CartesianAccelEmergencyController` serves agents whose action is their acceleration,
`JacobianEmergencyController` all others, a = J u + beta: it aims at the summed repulsion through
the model's inverse and gives that direction up only where the box forces it to.

The action that separates an agent fastest from several others: exact, over the action box.

Problem:   max_u min_k  rows_k @ u + offset_k   subject to  |u_i| <= c
           rows_k = n_k^T J and offset_k = n_k^T beta: the acceleration away from agent k.
One row:   u_i = c sign(rows_i), in closed form: the box's support c |rows|_1 is reached.
Several:   a linear programme with n + 1 variables, solved by HiGHS through SciPy.
Ties:      components that push nobody away stay where ``start`` has them, so that a push does not
           throw the agent sideways.
Units:     rows in m/s^2 per action unit, offsets in m/s^2.
"""

import importlib
from typing import Any, Final

import numpy as np

from cadenza.core.arrays import FloatArray, require_shape
from cadenza.core.checks import require_kinds
from cadenza.safety.authority import read_action_map
from cadenza.safety.contracts import AgentControlModel, Bounds
from cadenza.safety.contracts import EmergencyController as EmergencyController
from cadenza.safety.snapshot import AgentSnapshot

#: Length of a sum of unit vectors below which they cancel and give no direction.
_CANCELLED: Final = 1e-12
#: Time constant of the stop when repulsions cancel, s. Full braking of a slow agent would reverse
#: it within one control step and swing; v / 0.1 s does not for steps up to 0.1 s.
STOP_TIME_S: Final = 0.1
#: Price of moving a component from ``start``, as a share of the largest entry of the rows. Far
#: below any push worth having, far above the solver's tolerance of 1e-7.
_TIE_PRICE: Final = 1e-5
#: Share of the wanted push that counts as all of it; a well-conditioned inverse with the default
#: damping misses a millionth.
_ENOUGH: Final = 1e-3


def net_repulsion(
    agent_state: AgentSnapshot, pairwise_repulsion_vectors: list[FloatArray]
) -> FloatArray | None:
    """Return the sum of the vectors, shape (d,); None if they cancel or there are none.

    Raises:
        InputError: A vector has another shape than the position.
    """
    push = np.zeros(agent_state.position.shape)
    for vector in pairwise_repulsion_vectors:
        require_shape("repulsion vector", vector, push.shape)
        push += vector
    return push if float(np.linalg.norm(push)) >= _CANCELLED else None


def stretch(vector: FloatArray, length: float) -> FloatArray:
    """Return ``vector``, which must not vanish, with the given Euclidean length."""
    return vector * (length / float(np.linalg.norm(vector)))


def braking_accel(agent_state: AgentSnapshot, capacity: float) -> FloatArray:
    """Return the acceleration that stops the agent, shape (d,), m/s^2: -v / `STOP_TIME_S`."""
    speed = float(np.linalg.norm(agent_state.velocity))
    gain = min(1.0 / STOP_TIME_S, capacity / speed) if speed > 0.0 else 0.0
    return -gain * agent_state.velocity


def scale_into_box(action: FloatArray, c: float) -> FloatArray:
    """Return ``action`` scaled down as a whole so that |action_k| <= c; its direction stays."""
    largest = float(np.max(np.abs(action)))
    return action * (c / largest) if largest > c else action


class CartesianAccelEmergencyController:
    """Sums the repulsion vectors and pushes that way; for agents whose action is acceleration."""

    def compute_override(
        self,
        agent_state: AgentSnapshot,
        pairwise_repulsion_vectors: list[FloatArray],
        bounds: Bounds,
    ) -> FloatArray:
        """Return the emergency acceleration, shape (d,), m/s^2, inside the action box.

        It points along the summed vectors; where they cancel, or there are none, the agent brakes
        along its velocity. The push has the norm of the Cartesian capacity, scaled down as a
        whole, so that its direction stays, where a component would leave the box.

        Raises:
            InputError: A vector has another shape than the position.
        """
        repulsion = net_repulsion(agent_state, pairwise_repulsion_vectors)
        capacity = bounds.cartesian_accel_capacity
        if repulsion is None:
            push = braking_accel(agent_state, capacity)
        else:
            push = stretch(repulsion, capacity)
        return scale_into_box(push, bounds.action_linf_component)


def load_linear_programming() -> Any:
    """Import the solver now, so that the first emergency does not wait for it (0.2 s)."""
    return importlib.import_module("scipy.optimize")


def max_push_action(
    rows: FloatArray, offsets: FloatArray, c: float, start: FloatArray
) -> FloatArray:
    """Return the action with the largest smallest push, shape (n,), nearest to ``start``."""
    largest = float(np.abs(rows).max())
    if largest <= 0.0:
        return start.copy()
    if len(rows) > 1:
        scale = c * largest
        found = _solve(rows / largest, offsets / scale, start / c)
        if found is not None:
            return np.clip(c * found, -c, c)
        rows = rows[[int((rows @ start + offsets).argmin())]]  # the agent in most need
    gain = rows[0]
    worth = _TIE_PRICE * largest
    return np.where(gain > worth, c, np.where(gain < -worth, -c, start))


def _solve(rows: FloatArray, offsets: FloatArray, start: FloatArray) -> FloatArray | None:
    """Return the best action in the unit box; None if the solver gives up.

    Variables are (u, t, w): t is the smallest push, w bounds |u - start| from above.
    """
    m, n = rows.shape
    eye, zeros = np.eye(n), np.zeros((n, 1))
    constraints = np.block(
        [
            [-rows, np.ones((m, 1)), np.zeros((m, n))],
            [eye, zeros, -eye],
            [-eye, zeros, -eye],
        ]
    )
    limits = np.concatenate([offsets, start, -start])
    cost = np.concatenate([np.zeros(n), [-1.0], np.full(n, _TIE_PRICE)])
    bounds = [(-1.0, 1.0)] * n + [(None, None)] + [(0.0, None)] * n
    result = load_linear_programming().linprog(
        cost, A_ub=constraints, b_ub=limits, bounds=bounds, method="highs"
    )
    return None if result.x is None else np.asarray(result.x[:n], dtype=np.float64)


class JacobianEmergencyController:
    """Pushes along the summed repulsion through the inverse of a control model.

    1. The target acceleration has the norm of the Cartesian capacity along the summed repulsion;
       where repulsions cancel it brakes along the velocity.
    2. The model's inverse turns target less bias into an action; inside the box, that is it.
    3. Otherwise the action is scaled down as a whole. Where that, or the damping of a singular
       posture, costs push, it moves towards the exact maximum push
       until every dangerous partner is left as fast as with the target, or as the box can.

    Args:
        control_model: Maps the agent's action to its acceleration.

    Raises:
        ConfigurationError: The model is none.
    """

    def __init__(self, *, control_model: AgentControlModel) -> None:
        require_kinds(
            "JacobianEmergencyController", control_model=(control_model, AgentControlModel)
        )
        load_linear_programming()
        self._model = control_model

    def compute_override(
        self,
        agent_state: AgentSnapshot,
        pairwise_repulsion_vectors: list[FloatArray],
        bounds: Bounds,
    ) -> FloatArray:
        """Return the emergency action, shape (n,), inside the action box.

        Raises:
            InputError: A vector has another shape than the position, or the model's answer is
                malformed.
        """
        c = bounds.action_linf_component
        jacobian, bias = read_action_map(self._model, agent_state)
        capacity = bounds.cartesian_accel_capacity
        repulsion = net_repulsion(agent_state, pairwise_repulsion_vectors)
        if repulsion is None:
            target = braking_accel(agent_state, capacity)
            directions = target[None]
        else:
            target = stretch(repulsion, capacity)
            directions = np.stack(pairwise_repulsion_vectors)
        wanted = self._model.cartesian_accel_to_action(agent_state, target - bias)
        scaled = scale_into_box(wanted, c)
        rows, offsets = directions @ jacobian, directions @ bias
        goal = float((directions @ target).min())
        if float((rows @ scaled + offsets).min()) >= goal - _ENOUGH * abs(goal):
            return scaled
        best = max_push_action(rows, offsets, c, scaled)
        return np.clip(_blend(scaled, best, rows, offsets, goal), -c, c)


def _blend(
    start: FloatArray, best: FloatArray, rows: FloatArray, offsets: FloatArray, goal: float
) -> FloatArray:
    """Return the first action on the way from ``start`` to ``best`` whose pushes reach the goal.

    Pushes are linear along the way, so each row gives the share at which it reaches the goal.
    """
    share = 0.0
    for now, then in zip(rows @ start + offsets, rows @ best + offsets, strict=True):
        if now < goal:
            share = max(share, (goal - now) / (then - now) if then > goal else 1.0)
    return start + share * (best - start)
