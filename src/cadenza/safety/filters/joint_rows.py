"""Rows of one step on the actions of all agents at once, one per pair.

Variables:   u = (u_1, ..., u_N), the agents in string order of their ids, each in its own slot.
Action map:  a_k = J_k u_k + beta_k in the box of agent k.
Row (i, j):  -n^T J_i u_i + n^T J_j u_j <= level + n @ beta_i - n @ beta_j + lambda,
             n from the centre of j to that of i; level from `cadenza.safety.rows.barrier`.
alpha:       alpha_i + alpha_j, what both agents brake with; each alpha_k is what the box of k
             reaches in its weakest direction, at most its declared capacity.

Why the row keeps the pair apart (sampled barrier, lambda <= 0). The proof for the ego alone,
docs/safety.md, reads the relative motion only. Its steps 1 to 3 need the closing speed c after the
step, which the row there bounds for the worst partner; here both accelerations are decided, so
c = w - n @ (a_i - a_j) dt exactly, and the row says c + tau <= c_max without a term for the
partner. A of tau is reach_i + reach_j. Step 4, that an admissible action exists: both agents push
straight apart with alpha_i and alpha_j. Their boxes do not depend on each other, so the product of
the boxes contains the pair of pushes, and c = w - (alpha_i + alpha_j) dt meets the row as before.
Limits:      three agents and more: the rows of several pairs can conflict. Shared control: a box
             around a partner's proposed action need not contain its push, so step 4 does not hold.
Units:       m, m/s, m/s^2.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cadenza.core.errors import ConfigurationError
from cadenza.safety.bounds import MIN_BOUND
from cadenza.safety.rows.authority import EgoAuthority
from cadenza.safety.rows.barrier import LevelFunction, PairParameters, Plant, pair_geometry
from cadenza.safety.snapshot import AgentSnapshot


@dataclass(frozen=True, slots=True, eq=False)
class JointAgent:
    """One agent of a step.

    Attributes:
        uid: Its id.
        snapshot: Its motion.
        authority: What its action does to its ball.
        start: Index of its first variable.
        width: Number of its variables.
    """

    uid: str
    snapshot: AgentSnapshot
    authority: EgoAuthority
    start: int
    width: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JointRule:
    """How rows are built, the same for every pair and step.

    Attributes:
        level: Function behind every row.
        gamma: Rate at which overlap is undone, 1/s, or gain of the classical row.
        plant: How the plant integrates one control step.
        margin_m: Distance kept in addition to the radii, m.
        dt: Control step, s.
        declared_alpha: Credit agents with what they declare, whatever their box reaches.
    """

    level: LevelFunction
    gamma: float
    plant: Plant
    margin_m: float
    dt: float
    declared_alpha: bool


@dataclass(slots=True)
class JointRows:
    """Rows of one step before lambda, one entry per pair in canonical order.

    Attributes:
        a: Row vectors on all variables.
        level: Right-hand sides at lambda = 0, m/s^2.
        h: Barrier values, m/s.
        margin: Free distance less the safety margin, m.
        time_left: Time until the margin is used up at today's closing speed, s; inf if never.
    """

    a: list[list[float]]
    level: list[float]
    h: list[float]
    margin: list[float]
    time_left: list[float]


def joint_parameters(first: JointAgent, second: JointAgent, rule: JointRule) -> PairParameters:
    """Return the constants of the row of two agents that both obey.

    Raises:
        ConfigurationError: Neither agent has any authority, so nothing keeps them apart.
    """
    if rule.declared_alpha:
        alpha = first.authority.capacity + second.authority.capacity
    else:
        alpha = first.authority.every_direction + second.authority.every_direction
    if not alpha >= MIN_BOUND:
        raise ConfigurationError(
            f"joint filter: expected {first.uid!r} or {second.uid!r} to have authority in every "
            f"direction, got {alpha:.4g} m/s^2 together; declare what they can really do."
        )
    return PairParameters(
        alpha=alpha,
        partner_accel=0.0,  # nobody in the pair is a disturbance
        relative_accel=first.authority.reach + second.authority.reach,
        dt=rule.dt,
        gamma=rule.gamma,
        plant=rule.plant,
    )


def build_joint_rows(agents: Sequence[JointAgent], rule: JointRule) -> JointRows:
    """Return the rows of all pairs, outer agent first.

    Args:
        agents: All agents, in string order of their ids.
        rule: How rows are built.

    Raises:
        ConfigurationError: A pair without authority.
    """
    rows = JointRows([], [], [], [], [])
    size = sum(agent.width for agent in agents)
    for index, first in enumerate(agents):
        for second in agents[index + 1 :]:
            _append_row(rows, first, second, joint_parameters(first, second, rule), rule, size)
    return rows


def _append_row(
    rows: JointRows,
    first: JointAgent,
    second: JointAgent,
    pair: PairParameters,
    rule: JointRule,
    size: int,
) -> None:
    one, other = first.snapshot, second.snapshot
    normal, distance, closing, tangential = pair_geometry(
        one.position_numbers,
        one.velocity_numbers,
        other.position_numbers,
        other.velocity_numbers,
    )
    contact = one.radius + other.radius + rule.margin_m
    level, h = rule.level(distance, contact, closing, tangential, pair)
    row = [0.0] * size
    row[first.start : first.start + first.width] = _slot(normal, first.authority, -1.0)
    row[second.start : second.start + second.width] = _slot(normal, second.authority, 1.0)
    margin = distance - contact
    rows.a.append(row)
    rows.level.append(
        level + _along(normal, first.authority.bias) - _along(normal, second.authority.bias)
    )
    rows.h.append(h)
    rows.margin.append(margin)
    rows.time_left.append(0.0 if margin <= 0.0 else margin / closing if closing > 0.0 else math.inf)


def _slot(normal: list[float], authority: EgoAuthority, sign: float) -> list[float]:
    """Return sign n^T J, one number per action component."""
    if authority.jacobian is None:
        return [sign * n_k for n_k in normal]
    return (sign * (authority.jacobian.T @ normal)).tolist()


def _along(normal: list[float], bias: Sequence[float] | None) -> float:
    """Return n @ bias, m/s^2."""
    if bias is None:
        return 0.0
    return sum([n_k * b_k for n_k, b_k in zip(normal, bias, strict=True)])
