"""Still pictures of the recorded episodes: whole paths, starts, goals and contacts."""

from collections.abc import Sequence
from typing import Final

from cadenza.evaluation.report.figures.figure import Figure, LegendEntry, make_figure
from cadenza.evaluation.report.rollouts import Extent, extent_of, outcome_text, robot_roles
from cadenza.evaluation.report.svg import Drawing, Layout, Scale, shorten
from cadenza.evaluation.report.view import ConditionView, PartnerView, ReportView, Rollout

#: Most corners of one path; at this size more cannot be seen.
MAX_CORNERS: Final = 60

#: Most pictures side by side on a wide screen.
MAX_COLUMNS: Final = 5


def trajectory_figure(view: ReportView) -> Figure | None:
    """Return one picture per recorded episode, or ``None`` when none was recorded."""
    if not view.rollouts:
        return None
    runs = {(r.partner_id, r.condition_id): r for r in view.rollouts}
    partners = [p for p in view.partners if any(p.partner_id == key[0] for key in runs)]
    extent = extent_of(view.rollouts)
    words = "; ".join(
        f"{p.label}, {c.label}: {outcome_text(runs[p.partner_id, c.condition_id])}"
        for p in partners
        for c in view.conditions
        if (p.partner_id, c.condition_id) in runs
    )
    return make_figure(
        lambda layout: _draw(partners, view.conditions, runs, extent, view.ego_uid, layout),
        identity="fig-trajectories",
        title="Every recorded episode at a glance",
        caption="Open circle: start. Disc: last position, drawn at true size. Cross: goal. "
        "Both conditions of a partner begin from the same state.",
        description=words + ".",
        legend=(
            LegendEntry(css="ego", label="ego"),
            LegendEntry(css="partner", label="partner"),
            LegendEntry(css="hit", label="contact"),
        ),
    )


def _draw(
    partners: Sequence[PartnerView],
    conditions: Sequence[ConditionView],
    runs: dict[tuple[str, str], Rollout],
    extent: Extent,
    ego_uid: str,
    layout: Layout,
) -> Drawing:
    """Return the grid: wide has partners side by side, narrow has conditions side by side."""
    if layout.narrow:
        return _draw_narrow(partners, conditions, runs, extent, ego_uid, layout)
    columns = min(len(partners), MAX_COLUMNS)
    size = min((layout.width - 12.0 * (columns - 1)) / columns, 240.0)
    bands = -(-len(partners) // columns)
    band_height = 30.0 + len(conditions) * (size + 42.0)
    drawing = Drawing(width=layout.width, height=bands * band_height)
    for index, partner in enumerate(partners):
        x = (index % columns) * (size + 12.0)
        y = (index // columns) * band_height
        drawing.text(x, y + 16, shorten(partner.label, limit=20), "label strong")
        for row, condition in enumerate(conditions):
            run = runs.get((partner.partner_id, condition.condition_id))
            top = y + 30.0 + row * (size + 42.0)
            if run is not None:
                _draw_picture(drawing, run, extent, ego_uid, x, top, size)
                drawing.text(x, top + size + 16, condition.label, "note")
                drawing.text(x, top + size + 31, outcome_text(run), "label small")
    return drawing


def _draw_narrow(
    partners: Sequence[PartnerView],
    conditions: Sequence[ConditionView],
    runs: dict[tuple[str, str], Rollout],
    extent: Extent,
    ego_uid: str,
    layout: Layout,
) -> Drawing:
    """Return the grid for phones."""
    size = (layout.width - 12.0) / 2
    band_height = 30.0 + size + 48.0
    drawing = Drawing(width=layout.width, height=len(partners) * band_height)
    for index, partner in enumerate(partners):
        y = index * band_height
        drawing.text(0, y + 16, shorten(partner.label), "label strong")
        for column, condition in enumerate(conditions):
            run = runs.get((partner.partner_id, condition.condition_id))
            x = column * (size + 12.0)
            if run is not None:
                _draw_picture(drawing, run, extent, ego_uid, x, y + 28.0, size)
                drawing.text(x, y + 28 + size + 16, condition.label, "note")
                drawing.text(x, y + 28 + size + 32, outcome_text(run), "label small")
    return drawing


def _draw_picture(
    drawing: Drawing,
    run: Rollout,
    extent: Extent,
    ego_uid: str,
    left: float,
    top: float,
    size: float,
) -> None:
    """Draw one episode into a square."""
    x = Scale(low=extent.x_low, high=extent.x_high, start=left, end=left + size)
    y = Scale(low=extent.y_low, high=extent.y_high, start=top + size, end=top)
    unit = size / (extent.x_high - extent.x_low)
    drawing.rect(left, top, size, size, "floor")
    roles = robot_roles(run, ego_uid)
    for uid, role in reversed(roles.items()):
        if uid in run.goals:
            gx, gy = x(run.goals[uid][0]), y(run.goals[uid][1])
            drawing.line(gx - 5, gy - 5, gx + 5, gy + 5, f"goal {role}")
            drawing.line(gx - 5, gy + 5, gx + 5, gy - 5, f"goal {role}")
        path = [(x(frame[uid][0]), y(frame[uid][1])) for frame in _thin(run)]
        drawing.circle(*path[0], run.radii[uid] * unit, f"start {role}")
        drawing.polyline(path, f"trail {role}")
        drawing.circle(*path[-1], run.radii[uid] * unit, f"robot {role}")
    if run.contact_index is not None:
        px, py = run.frames[run.contact_index][ego_uid]
        drawing.circle(x(px), y(py), run.radii[ego_uid] * unit + 4, "hit")


def _thin(run: Rollout) -> list[dict[str, tuple[float, float]]]:
    """Return at most `MAX_CORNERS` frames, both ends included."""
    frames = [dict(frame) for frame in run.frames]
    if len(frames) <= MAX_CORNERS:
        return frames
    last = len(frames) - 1
    return [frames[round(i * last / (MAX_CORNERS - 1))] for i in range(MAX_CORNERS)]
