"""Recorded episodes as the player and the still pictures need them."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from cadenza.evaluation.report.view import Point, ReportView, Rollout, condition_css


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """Part of the plane that every picture shows, m.

    Attributes:
        x_low: Left edge.
        x_high: Right edge.
        y_low: Lower edge.
        y_high: Upper edge.
    """

    x_low: float
    x_high: float
    y_low: float
    y_high: float


def extent_of(rollouts: Sequence[Rollout]) -> Extent:
    """Return the smallest square that holds every robot and goal, with a small margin."""
    points: list[Point] = []
    for rollout in rollouts:
        for frame in (*rollout.frames, rollout.goals):
            points += frame.values()
    radius = max(r for rollout in rollouts for r in rollout.radii.values())
    xs, ys = [x for x, _ in points], [y for _, y in points]
    half = max(max(xs) - min(xs), max(ys) - min(ys)) / 2 + 1.3 * radius
    x, y = (max(xs) + min(xs)) / 2, (max(ys) + min(ys)) / 2
    return Extent(x_low=x - half, x_high=x + half, y_low=y - half, y_high=y + half)


def robot_roles(rollout: Rollout, ego_uid: str) -> dict[str, str]:
    """Return ``"ego"``, ``"partner"`` or ``"other"`` for every robot, the ego first.

    The partner is the first robot that is not the ego; the rest are others.
    """
    rest = [uid for uid in rollout.frames[0] if uid != ego_uid]
    roles = {ego_uid: "ego"}
    for index, uid in enumerate(rest):
        roles[uid] = "partner" if index == 0 else "other"
    return roles


def ego_distances(rollout: Rollout, ego_uid: str) -> list[float]:
    """Return the distance from the ego to the nearest other robot at each frame, m."""
    distances: list[float] = []
    for frame in rollout.frames:
        ego = frame[ego_uid]
        others = [math.dist(ego, point) for uid, point in frame.items() if uid != ego_uid]
        distances.append(min(others, default=0.0))
    return distances


def outcome_text(rollout: Rollout) -> str:
    """Return how the episode ended, with the time."""
    step = rollout.control_timestep_s
    if rollout.contact_index is not None:
        return f"contact at {rollout.contact_index * step:.2f} s"
    end = (len(rollout.frames) - 1) * step
    return f"goal reached at {end:.2f} s" if rollout.success else f"not solved in {end:.2f} s"


def player_data(view: ReportView) -> Markup:
    """Return the player's data as JSON that is safe inside a script element.

    Positions are whole millimetres: finer than a pixel at any zoom the player offers.
    """
    extent = extent_of(view.rollouts)
    data = {
        "extent": [extent.x_low, extent.y_low, extent.x_high, extent.y_high],
        "contact": view.contact_distance_m,
        "unit": view.action_unit,
        "conditions": [
            {"id": c.condition_id, "label": c.label, "css": css}
            for c, css in zip(view.conditions, condition_css(view), strict=True)
        ],
        "partners": [
            {"id": p.partner_id, "label": p.label, "seen": p.seen}
            for p in view.partners
            if any(r.partner_id == p.partner_id for r in view.rollouts)
        ],
        "runs": [_run(rollout, view.ego_uid) for rollout in view.rollouts],
    }
    return script_json(data)


def script_json(data: Any) -> Markup:
    """Return ``data`` as JSON without any character that could end or open markup.

    Raises:
        ValueError: ``data`` holds NaN or infinity.
    """
    text = json.dumps(data, separators=(",", ":"), allow_nan=False, ensure_ascii=True)
    for mark, code in (("<", "\\u003c"), (">", "\\u003e"), ("&", "\\u0026"), ("'", "\\u0027")):
        text = text.replace(mark, code)
    return Markup(text)  # noqa: S704 -- no markup character is left


def _run(rollout: Rollout, ego_uid: str) -> dict[str, Any]:
    """Return one rollout in the player's form."""
    return {
        "p": rollout.partner_id,
        "c": rollout.condition_id,
        "seed": rollout.seed,
        "start": rollout.initial_state_seed,
        "dt": rollout.control_timestep_s,
        "robots": [
            {
                "uid": uid,
                "role": role,
                "r": rollout.radii[uid],
                "goal": list(rollout.goals[uid]) if uid in rollout.goals else None,
                "path": [_mm(value) for frame in rollout.frames for value in frame[uid]],
            }
            for uid, role in robot_roles(rollout, ego_uid).items()
        ],
        "d": [_mm(value) for value in ego_distances(rollout, ego_uid)],
        "act": [round(value, 3) for value in rollout.interventions],
        "contact": rollout.contact_index,
        "end": outcome_text(rollout),
        "success": rollout.success,
    }


def _mm(value: float) -> int:
    """Return metres as whole millimetres."""
    return round(1000.0 * value)
