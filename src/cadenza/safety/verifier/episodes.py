"""Record of one episode, and its picture: where everyone went, how near, what the filter did.

Worst moment:  the first one that breaks a claim; else of the first contact; else the first one
               about as near as any, as who is chased keeps a distance for seconds.
Gaps:          free distances, 0 at a contact.
In 3-D:        seen at right angles to the line of centres at the worst moment, so that the gap at
               that moment appears in its true size; among obstacles along an axis, cut where the
               robot is at that moment.

Axes:  T steps, N partners, d Cartesian dimensions.
Units: m, m/s, m/s^2, s.
"""

import io
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.extras import load_extra
from cadenza.safety.geometry import Obstacles
from cadenza.safety.maps import draw_obstacles, map_extent
from cadenza.safety.verifier.adversaries import BoolArray, dot, length, unit

#: Colours of the robot, of contacts, of what is of no interest and of partners.
_EGO: Final = "#1d4ed8"
_ALERT: Final = "#b91c1c"
_GREY: Final = "#64748b"
_PARTNERS: Final = ("#c2410c", "#a16207", "#7e22ce", "#0f766e", "#be185d", "#4d7c0f")
#: What the judge and the filter say about steps.
BROKEN: Final = "claim broken"
STATIC: Final = "obstacles not certified"
UNCERTIFIED: Final = "partner not certified"
#: Where actions come from, as `backup` of a step says it, with colours.
_SOURCES: Final = {
    "none": "#94a3b8",
    "rows": "#2563eb",
    "blend": "#0891b2",
    "radial": "#7c3aed",
    "escape": "#c026d3",
    "brake": "#475569",
}
#: Everything that is drawn about steps, from the top.
_SHADES: Final = {
    BROKEN: _ALERT,
    STATIC: "#ea580c",
    UNCERTIFIED: "#f59e0b",
    "no action meets every row": "#7e22ce",
    "filter changed it": _EGO,
    **_SOURCES,
}
#: Partners with a colour and a name, the nearest ones; the others are grey.
_NAMED: Final = 6
#: Strategies in the title.
_TITLED: Final = 4
#: Discs drawn faintly along a path, the worst moment aside.
_GHOSTS: Final = 7
#: What is drawn: from the moment that something is this near, m, ...
_NEAR_M: Final = 2.5
#: ... until this long after the worst moment, s.
_AFTERWARDS_S: Final = 1.0
#: The closest moment is the first within this share of the smallest gap, ...
_AS_NEAR: Final = 0.05
#: ... taken as this at least, m.
_SAME_M: Final = 0.01
#: A gap below this is drawn as a contact, m.
_CONTACT_M: Final = -1e-6
#: How far below its axes a legend begins, inches.
_BELOW: Final = -0.42
#: Half of the window around the worst moment among obstacles, in distances of centres at contact.
_WINDOW: Final = 2.5


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EpisodeRecord:
    """One whole episode; its T steps may be parts of control steps."""

    summary: dict[str, Any]  # What identifies it, as JSON values
    rank: tuple[float, ...]  # Order of episodes: the lowest is the most telling
    scene: str  # What was played, in words
    nominal_name: str  # The ego's nominal controller
    adversary_names: list[str]  # The partners' strategies, N names
    dt: float  # Length of a step, s
    radii: tuple[float, float]  # Of the ego and of the partners, m
    ego_path: FloatArray  # Ego's centre at every sample, shape (T + 1, d), m
    partner_paths: FloatArray  # Partners' centres, shape (T + 1, N, d), m
    nearest: FloatArray  # Smallest distance of the centres within each step, shape (T, N), m
    #: Distance that the safe set asks for at every sample, shape (T + 1, N), m; None: not judged
    bound: FloatArray | None = None
    obstacles: Obstacles = field(default_factory=lambda: Obstacles(()))
    #: What the ego did in each step, shape (T,), by the name of the curve, and its quantity
    curves: Mapping[str, FloatArray]
    quantity: str
    shades: Mapping[str, BoolArray]  # Steps of which something is said, shape (T,), of `_SHADES`
    start_s: float = 0.0  # Time of the first sample, s

    @property
    def contact_m(self) -> float:
        """Distance of the centres at contact, m."""
        return sum(self.radii)

    @property
    def distance(self) -> FloatArray:
        """Distance of the centres at every sample, shape (T + 1, N), m."""
        offset = self.ego_path[:, None] - self.partner_paths
        return np.sqrt(dot(offset, offset))

    @property
    def walls(self) -> FloatArray:
        """Free distance to the nearest obstacle at every sample, shape (T + 1,), m."""
        gaps, _ = self.obstacles.gaps(self.ego_path)
        return gaps.min(axis=1, initial=np.inf) - self.radii[0]

    @property
    def free_m(self) -> FloatArray:
        """Smallest free distance to anything in each step, shape (T,), m."""
        walls = self.walls
        nearest = self.nearest.min(axis=1, initial=np.inf) - self.contact_m
        return np.minimum(nearest, np.minimum(walls[:-1], walls[1:]))

    def part(self, first: int, last: int) -> "EpisodeRecord":
        """Return the steps ``first`` to ``last``, the latter excluded."""
        return replace(
            self,
            ego_path=self.ego_path[first : last + 1],
            partner_paths=self.partner_paths[first : last + 1],
            bound=None if self.bound is None else self.bound[first : last + 1],
            nearest=self.nearest[first:last],
            curves={name: curve[first:last] for name, curve in self.curves.items()},
            shades={name: shade[first:last] for name, shade in self.shades.items()},
            start_s=self.start_s + first * self.dt,
        )


def telling_part(episode: EpisodeRecord) -> EpisodeRecord:
    """Return the episode around its closest moment: while something is near, plus a second."""
    step = closest_moment(episode)
    free_m = episode.free_m
    far = np.flatnonzero(free_m + episode.contact_m > _NEAR_M)
    before, after = far[far < step], far[far > step]
    first = int(before[-1]) if before.size else 0
    last = int(after[0]) if after.size else len(free_m)
    afterwards = step + max(10, round(_AFTERWARDS_S / episode.dt))
    return episode.part(first, min(last, afterwards, len(free_m)))


def closest_moment(episode: EpisodeRecord) -> int:
    """Return the step of the worst moment."""
    free_m = episode.free_m
    contact, lowest = free_m < _CONTACT_M, float(free_m.min())
    broken = episode.shades.get(BROKEN, contact)
    for worst in (broken & contact, broken, contact):
        if worst.any():
            return int(worst.argmax())
    return int(np.argmax(free_m <= lowest + _AS_NEAR * max(lowest, _SAME_M)))


def nearest_partner(episode: EpisodeRecord, step: int) -> int | None:
    """Return the partner that is nearest in a step, if there is one."""
    return int(episode.nearest[step].argmin()) if episode.nearest.shape[1] else None


def nearest_sample(episode: EpisodeRecord, step: int) -> int:
    """Return the end of ``step`` that is nearer: discs are drawn at samples."""
    ends = np.minimum(
        episode.walls[step : step + 2],
        episode.distance[step : step + 2].min(axis=1, initial=np.inf) - episode.contact_m,
    )
    return step + int(ends.argmin())


def drawing_plane(episode: EpisodeRecord, sample: int, partner: int | None) -> FloatArray:
    """Return two orthonormal axes to draw in, shape (2, d).

    Among obstacles in 3-D they are two of x, y and z, those that show what is nearest best.
    """
    dim = episode.ego_path.shape[1]
    here = episode.ego_path[sample]
    if dim == 2 or (partner is None and not len(episode.obstacles)):
        return np.eye(2, dim)
    line = np.eye(dim)[0]
    apart = math.inf
    if partner is not None:
        offset = here - episode.partner_paths[sample, partner]
        apart, line = float(length(offset)) - episode.contact_m, unit(offset[None], line[None])[0]
    if len(episode.obstacles):
        gaps, normals = episode.obstacles.gaps(here)
        nearest = int(gaps.argmin())
        line = normals[nearest] if gaps[nearest] - episode.radii[0] < apart else line
        shown = np.sort(np.argsort(-np.abs(line), kind="stable")[:2])
        return np.eye(dim)[shown]
    points = np.concatenate([episode.ego_path[:, None], episode.partner_paths], axis=1)
    spread = (points - points.mean(axis=(0, 1))).reshape(-1, dim)
    across = spread - dot(spread, line)[:, None] * line
    _, _, directions = np.linalg.svd(across, full_matrices=False)
    second = directions[0]
    second = second * np.sign(second[np.abs(second).argmax()])  # svd leaves the sign open
    return np.stack((line, second))


def draw_episode(episode: EpisodeRecord) -> bytes:
    """Return a PNG of ``episode``; equal episodes give equal bytes on one machine."""
    buffer = io.BytesIO()
    episode_figure(episode).savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def episode_figure(episode: EpisodeRecord) -> Any:
    """Return the figure of `draw_episode`: the paths, and then gaps, actions and flags over time.

    Among obstacles the first axes show all of them, and the second what is around the worst moment.
    """
    figure: Any = load_extra("matplotlib.figure").Figure(
        figsize=(12.0, 8.5), dpi=120, layout="constrained"
    )
    title = f"{_title(episode)}\n{_outcome(episode)}"
    figure.suptitle(title, fontsize=11, color=_ALERT if "BROKEN" in title else "black")
    episode = telling_part(episode)
    sample = nearest_sample(episode, closest_moment(episode))
    order = np.argsort(episode.nearest.min(axis=0), kind="stable")[:_NAMED]
    colours = dict(zip(sorted(order.tolist()), _PARTNERS, strict=False))
    left, right = figure.add_gridspec(1, 2, width_ratios=(1.0, 1.3))
    if len(episode.obstacles):
        whole, near = left.subgridspec(2, 1)
        _draw_paths(figure.add_subplot(whole), episode, sample, colours, zoomed=False)
        _draw_paths(figure.add_subplot(near), episode, sample, colours, zoomed=True)
    else:
        _draw_paths(figure.add_subplot(left), episode, sample, colours)
    rows = right.subgridspec(3, 1, height_ratios=(3.0, 2.0, 2.0))
    gaps: Any = figure.add_subplot(rows[0])
    actions, flags = (figure.add_subplot(rows[k], sharex=gaps) for k in (1, 2))
    _draw_gaps(gaps, episode, colours)
    _draw_actions(actions, episode)
    _draw_flags(flags, episode)
    for axes in (gaps, actions, flags):
        moment = episode.start_s + episode.dt * sample
        label = "worst moment" if axes is gaps else None
        axes.axvline(moment, color="black", lw=1.0, ls=":", label=label)
        _finish(axes, legend=axes is gaps or (len(episode.curves) > 1 and axes is actions))
    return figure


def _title(episode: EpisodeRecord) -> str:
    """Return what was played and whether it broke a claim."""
    counted = Counter(episode.adversary_names).most_common()
    shown = [name if count == 1 else f"{count} x {name}" for name, count in counted[:_TITLED]]
    rest = sum(count for _, count in counted[_TITLED:])
    opponents = ", ".join(shown) + (f" and {rest} more" if rest else "") or "nobody"
    verdict = ""
    if BROKEN in episode.shades:
        verdict = "a claim is BROKEN; " if episode.shades[BROKEN].any() else "no claim is broken; "
    return (
        f"Worst episode: {verdict}policy “{episode.nominal_name}” against “{opponents}”\n"
        f"{episode.scene}"
    )


def _outcome(episode: EpisodeRecord) -> str:
    """Return in one line how near obstacles and partners came."""
    told: list[str] = []
    if len(episode.obstacles):
        told.append(f"obstacles {_nearness(float(episode.walls.min()))}")
    gaps = episode.nearest.min(axis=1, initial=np.inf) - episode.contact_m
    if episode.nearest.shape[1]:
        told.append(f"partner {_nearness(float(gaps.min()))}")
    contact = gaps < _CONTACT_M
    if contact.any() and UNCERTIFIED in episode.shades:
        certified = contact & ~episode.shades[UNCERTIFIED]
        told += [] if certified.any() else ["in uncertified steps only"]
    if contact.any() and "speed" in episode.curves:
        speed = float(episode.curves["speed"][contact.argmax()])
        told.append(f"first at an own speed of {speed:.2f} m/s")
    return ", ".join(told)


def _nearness(gap_m: float) -> str:
    """Return a smallest gap in words, in m or in mm where it is short."""
    size = 0.0 if abs(gap_m) <= -_CONTACT_M else abs(gap_m)
    text = f"{1e3 * size:.2g} mm" if size < 0.01 else f"{size:.2f} m"
    touched = gap_m < _CONTACT_M
    return f"touched (overlap {text})" if touched else f"not touched (gap {text} or more)"


def _draw_paths(
    axes: Any,
    episode: EpisodeRecord,
    sample: int,
    colours: Mapping[int, str],
    *,
    zoomed: bool | None = None,
) -> None:
    """Draw obstacles, paths, and solid discs at the worst moment, faint ones at equal times.

    ``zoomed``: all obstacles, or what is around the worst moment; None where there are none.
    """
    step = min(sample, len(episode.nearest) - 1)
    plane = drawing_plane(episode, sample, nearest_partner(episode, step))
    spatial, partners = plane.shape[1] == 3, episode.partner_paths.shape[1]
    here, cut, names = episode.ego_path[sample], "", ["x / m", "y / m"]
    if zoomed is not None:
        sides = plane.argmax(axis=1).tolist()
        reach = _WINDOW * episode.contact_m
        low, high = (here[sides] - reach, here[sides] + reach)
        if not zoomed:
            frame = load_extra("matplotlib.patches").Rectangle
            axes.add_patch(frame(tuple(low), 2 * reach, 2 * reach, fill=False, ls="--", zorder=5))
            corners = (
                *map_extent(episode.obstacles)[:, sides],
                low,
                high,
                *(episode.ego_path @ plane.T),
            )
            low, high = np.min(corners, axis=0) - 0.2, np.max(corners, axis=0) + 0.2
        draw_obstacles(axes, episode.obstacles, np.stack((low, high)), at=here, sides=sides)
        axes.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]))
        names = [f"{'xyz'[side]} / m" for side in sides]
        level = 3 - sum(sides)
        cut = f", cut at {'xyz'[level]} = {here[level]:.2f} m" if spatial else ""
    elif spatial and partners:
        cut, names = ", seen across the line of centres", ["line of centres / m", "across / m"]
    _draw_bodies(axes, episode, sample, plane, colours, zoomed=zoomed)
    axes.set_aspect("equal", adjustable="datalim" if zoomed is None else "box")
    moment = f"{episode.start_s + sample * episode.dt:.3g} s"
    title = f"Around the worst moment, {moment}{cut}\nfaint discs: at equal times"
    if zoomed is False:
        title = f"All obstacles{cut}; dashed: drawn below"
        title += "\npartners pass through obstacles" * (partners > 0)
    others = "" if len(colours) == partners else "; grey: other partners"
    axes.set(xlabel=names[0], ylabel=names[1], title=f"{title}{others}")
    _finish(axes, legend=zoomed is not False)


def _draw_bodies(
    axes: Any,
    episode: EpisodeRecord,
    sample: int,
    plane: FloatArray,
    colours: Mapping[int, str],
    *,
    zoomed: bool | None,
) -> None:
    """Draw paths and discs of the robot and the partners; ``zoomed`` as in `_draw_paths`."""
    bodies = [(episode.ego_path, episode.radii[0], _EGO, "robot")]
    count, circle = episode.partner_paths.shape[1], load_extra("matplotlib.patches").Circle
    for j in range(count):
        name = "partner" if count == 1 else f"partner {j + 1}"
        colour, name = (colours[j], name) if j in colours else (_GREY, "")
        bodies.append((episode.partner_paths[:, j], episode.radii[1], colour, name))
    ghosts = np.linspace(0, len(episode.ego_path) - 1, _GHOSTS).round().astype(int)
    for body, radius, colour, name in bodies:
        path, solid = body @ plane.T, radius
        if zoomed is not None:  # what the plane of the cut leaves of a ball
            off = body[sample] - episode.ego_path[sample]
            off = off - off @ plane.T @ plane
            solid = max(radius**2 - float(off @ off), 0.0) ** 0.5
        axes.plot(path[:, 0], path[:, 1], color=colour, lw=1.4, label=name or None)
        axes.plot(*path[0], "o", color=colour, mfc="white", ms=5, zorder=4)
        axes.add_patch(circle(tuple(path[sample]), radius, ec=colour, fill=False, lw=1.2))
        faint = [] if zoomed is False else [(k, radius, 0.12) for k in ghosts]
        for k, size, alpha in (*faint, (sample, solid, 0.55)):
            axes.add_patch(circle(tuple(path[k]), size, color=colour, alpha=alpha, lw=0))


def _draw_gaps(axes: Any, episode: EpisodeRecord, colours: Mapping[int, str]) -> None:
    """Draw the gaps to partners and obstacles over time, and what the safe set asks for."""
    gaps, walls = episode.distance - episode.contact_m, episode.walls
    times = episode.start_s + episode.dt * np.arange(len(gaps))
    for j in range(gaps.shape[1]):
        colour = colours.get(j, _GREY)
        name = "partner" if gaps.shape[1] == 1 else f"partner {j + 1}"
        axes.plot(times, gaps[:, j], color=colour, lw=1.5, label=name if j in colours else None)
        if episode.bound is not None:
            asked, label = episode.bound[:, j] - episode.contact_m, "what the safe set asks for"
            style = {"color": colour, "lw": 1.0, "ls": "--", "label": None if j else label}
            axes.plot(times, asked, **style)
    if len(episode.obstacles):
        axes.plot(times, walls, color="black", lw=1.5, label="nearest obstacle")
    lowest = np.minimum(gaps.min(axis=1, initial=np.inf), walls)
    # The nearest partner and the nearest obstacle, where there are any, are in sight.
    seen = lowest if np.isfinite(lowest).all() else np.zeros(1)
    ends = (float(np.quantile(seen, 0.98)), float(gaps.min(initial=np.inf)), float(walls.min()))
    top = 1.15 * max([0.5 * episode.contact_m, *(end for end in ends if np.isfinite(end))])
    bottom = min(1.15 * float(lowest.min()), -0.08 * top)
    axes.axhspan(bottom, 0.0, color=_ALERT, alpha=0.1, lw=0)
    axes.axhline(0.0, color=_ALERT, lw=1.2, label="contact")
    axes.set(ylim=(bottom, top), ylabel="gap / m", title="Gaps; 0 is a contact")


def _draw_actions(axes: Any, episode: EpisodeRecord) -> None:
    """Draw what the robot did."""
    for name, curve in episode.curves.items():
        wanted = name == "nominal"
        style = {"color": _GREY, "lw": 1.2, "ls": "--"} if wanted else {"color": _EGO, "lw": 1.4}
        axes.stairs(curve, _edges(episode), baseline=None, label=name, **style)
    axes.axhline(0.0, color=_GREY, lw=0.6)
    title = "Robot's action, the part towards the partner that came nearest"
    title = title if "executed" in episode.curves else "Robot's speed"
    axes.set(ylabel=episode.quantity, title=title)


def _draw_flags(axes: Any, episode: EpisodeRecord) -> None:
    """Draw in which steps what was said, one line each."""
    names = [name for name in _SHADES if name in episode.shades]
    for line, name in enumerate(reversed(names)):
        shade = episode.shades[name]
        said = np.where(shade, line + 0.35, np.nan)
        axes.stairs(said, _edges(episode), baseline=line - 0.35, fill=True, color=_SHADES[name])
        if not shade.any():
            axes.text(episode.start_s, line, "never", va="center", fontsize=8, color=_GREY)
    labels = [f"action: {name}" if name in _SOURCES else name for name in reversed(names)]
    axes.set_yticks(range(len(names)), labels, fontsize=8)
    axes.set(
        ylim=(-0.6, len(names) - 0.4),
        xlabel="time / s",
        title="What was said about each step, and where its action came from",
    )


def _edges(episode: EpisodeRecord) -> FloatArray:
    """Return the times between the steps, shape (T + 1,), s."""
    return episode.start_s + episode.dt * np.arange(len(episode.nearest) + 1, dtype=np.float64)


def _finish(axes: Any, *, legend: bool) -> None:
    """Tidy the axes; a legend lies below them, where no data are."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    axes.set_axisbelow(True)
    axes.title.set_fontsize(10)
    if legend:
        transforms, dots = load_extra("matplotlib.transforms"), axes.figure.dpi_scale_trans
        place = axes.transAxes + transforms.ScaledTranslation(0.0, _BELOW, dots)
        style = {"frameon": False, "fontsize": 8, "borderaxespad": 0.0, "columnspacing": 1.2}
        at = {"loc": "upper center", "bbox_to_anchor": (0.5, 0.0), "bbox_transform": place}
        axes.legend(ncols=5, **style, **at)
