"""Record of one episode, and its picture: where everyone went, how near, what the filter did.

A scene in three dimensions is shown along a direction at right angles to the line of centres at
the closest moment, so that the distance at that moment appears in its true size; among obstacles
from above, and they are cut at the ego's height at that moment.

Axes:  T steps, N partners, d Cartesian dimensions.
Units: m, m/s, m/s^2, s.
"""

import io
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.extras import load_extra
from cadenza.safety.geometry import Obstacles
from cadenza.safety.maps import draw_obstacles
from cadenza.safety.verifier.adversaries import BoolArray, dot, unit

#: Colours of the ego, of contacts, of what is of no interest and of partners.
_EGO: Final = "#1d4ed8"
_ALERT: Final = "#b91c1c"
_GREY: Final = "#64748b"
_PARTNERS: Final = ("#c2410c", "#a16207", "#7e22ce", "#0f766e", "#be185d", "#4d7c0f")
#: Colours of steps, by what is said about them; the second half are sources of actions.
_SHADES: Final = {
    "filter changed it": _EGO,
    "no action meets every row": _ALERT,
    "uncertified": "#f59e0b",
    "rows": "#2563eb",
    "blend": "#0891b2",
    "turn": "#0d9488",
    "radial": "#7c3aed",
    "escape": "#c026d3",
    "brake": "#dc2626",
}
#: Partners with a colour and a name, the nearest ones; the others are grey.
_NAMED: Final = 6
#: Strategies in the title.
_TITLED: Final = 4
#: Discs drawn faintly along a path, the closest moment aside.
_GHOSTS: Final = 7
#: What is drawn: from the moment that something is this near, m, ...
_NEAR_M: Final = 2.5
#: ... until this long after the closest moment, s.
_AFTERWARDS_S: Final = 1.0
#: The closest moment is the first within this share of the smallest free distance or overlap, ...
_AS_NEAR: Final = 0.05
#: ... taken as this at least, m.
_SAME_M: Final = 0.01


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
    """Return the first step that comes about as near as any.

    An ego that is chased keeps a distance for seconds; how it got there is what one wants to see.
    """
    free_m = episode.free_m
    lowest = float(free_m.min())
    return int(np.argmax(free_m <= lowest + _AS_NEAR * max(abs(lowest), _SAME_M)))


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
    """Return two orthonormal axes to draw in, shape (2, d)."""
    dim = episode.ego_path.shape[1]
    if dim == 2 or partner is None or len(episode.obstacles):
        return np.eye(2, dim)
    line = unit(
        (episode.ego_path[sample] - episode.partner_paths[sample, partner])[None], np.eye(dim)[:1]
    )[0]
    points = np.concatenate([episode.ego_path[:, None], episode.partner_paths], axis=1)
    spread = (points - points.mean(axis=(0, 1))).reshape(-1, dim)
    across = spread - dot(spread, line)[:, None] * line
    _, _, directions = np.linalg.svd(across, full_matrices=False)
    second = directions[0]
    second = second * np.sign(second[np.abs(second).argmax()])  # svd leaves the sign open
    return np.stack((line, second))


def draw_episode(episode: EpisodeRecord) -> bytes:
    """Return a PNG of ``episode``; equal episodes give equal bytes on one machine."""
    figure: Any = load_extra("matplotlib.figure").Figure(
        figsize=(12.0, 7.0), dpi=120, layout="constrained"
    )
    grid: Any = figure.add_gridspec(2, 2, width_ratios=(1.0, 1.1))
    lowest = float(episode.free_m.min())
    episode = telling_part(episode)
    step = closest_moment(episode)
    sample = nearest_sample(episode, step)
    order = np.argsort(episode.nearest.min(axis=0), kind="stable")[:_NAMED]
    colours = dict(zip(sorted(order.tolist()), _PARTNERS, strict=False))
    _draw_paths(figure.add_subplot(grid[:, 0]), episode, sample, colours)
    _draw_distances(figure.add_subplot(grid[0, 1]), episode, sample, colours)
    _draw_actions(figure.add_subplot(grid[1, 1]), episode)
    verdict = f"overlap of {-lowest:.4g} m" if lowest < -1e-9 else f"{max(lowest, 0.0):.2g} m free"
    counted = Counter(episode.adversary_names).most_common()
    shown = [name if count == 1 else f"{count} x {name}" for name, count in counted[:_TITLED]]
    rest = sum(count for _, count in counted[_TITLED:])
    opponents = ", ".join(shown) + (f" and {rest} more" if rest else "") or "nobody"
    figure.suptitle(
        f"Closest episode: {verdict}; ego “{episode.nominal_name}” against “{opponents}”\n"
        f"{episode.scene}",
        fontsize=11,
    )
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def _draw_paths(axes: Any, episode: EpisodeRecord, sample: int, colours: Mapping[int, str]) -> None:
    """Draw obstacles, paths, faint discs at equal times and solid ones at the closest moment."""
    partners = episode.partner_paths.shape[1]
    step = min(sample, len(episode.nearest) - 1)
    plane = drawing_plane(episode, sample, nearest_partner(episode, step))
    paths = [(episode.ego_path @ plane.T, episode.radii[0], _EGO, "ego")]
    for j in range(partners):
        label = "partner" if partners == 1 else f"partner {j + 1}"
        label, colour = (label, colours[j]) if j in colours else ("", _GREY)
        paths.append((episode.partner_paths[:, j] @ plane.T, episode.radii[1], colour, label))
    seen, names = "", ("x / m", "y / m")
    if len(episode.obstacles):
        extent = np.stack((episode.ego_path.min(axis=0) - 1.0, episode.ego_path.max(axis=0) + 1.0))
        height_m = float(episode.ego_path[sample, 2]) if plane.shape[1] == 3 else 0.0
        draw_obstacles(axes, episode.obstacles, extent, height_m=height_m)
        axes.set(xlim=extent[:, 0], ylim=extent[:, 1])
        seen = "" if plane.shape[1] == 2 else f", obstacles cut at z = {height_m:.3g} m"
    elif plane.shape[1] == 3 and partners:
        seen, names = ", seen across the line of centres", ("line of centres / m", "across / m")
    ghosts = np.linspace(0, len(episode.ego_path) - 1, _GHOSTS).round().astype(int)
    circle = load_extra("matplotlib.patches").Circle
    for path, radius, colour, label in paths:
        axes.plot(path[:, 0], path[:, 1], color=colour, lw=1.4, label=label or None)
        axes.plot(*path[0], "o", color=colour, mfc="white", ms=5, zorder=4)
        for k, alpha in (*((k, 0.12) for k in ghosts), (sample, 0.55)):
            axes.add_patch(circle(tuple(path[k]), radius, color=colour, alpha=alpha, lw=0))
    axes.set_aspect("equal", adjustable="box" if len(episode.obstacles) else "datalim")
    others = "" if len(colours) == partners else "; grey: other partners"
    moment = episode.start_s + sample * episode.dt
    axes.set(
        xlabel=names[0],
        ylabel=names[1],
        title=f"Paths from ○{seen}{others}\nsolid discs: the first moment about as near as any, "
        f"t = {moment:.3g} s",
    )
    _finish(axes)


def _draw_distances(
    axes: Any, episode: EpisodeRecord, sample: int, colours: Mapping[int, str]
) -> None:
    """Draw distances and safe-set bounds over time, with the contact line and the discs' moment.

    Distances to obstacles are moved by the partners' radius, so that one line means contact.
    """
    distance, walls = episode.distance, episode.walls + episode.contact_m
    times = episode.start_s + episode.dt * np.arange(len(distance))
    several = distance.shape[1] > 1
    for j in range(distance.shape[1]):
        colour = colours.get(j, _GREY)
        name = f"partner {j + 1}" if several else "distance of the centres"
        name = name if j in colours else None
        axes.plot(times, distance[:, j], color=colour, lw=1.5, label=name)
        if episode.bound is not None:
            bound = "safe-set bound" if j == 0 else None
            axes.plot(times, episode.bound[:, j], color=colour, lw=1.0, ls="--", label=bound)
    if len(episode.obstacles):
        axes.plot(times, walls, color="black", lw=1.2, label="nearest obstacle")
    contact_m = episode.contact_m
    axes.axhline(contact_m, color=_ALERT, lw=1.2, label=f"contact, {contact_m:g} m")
    moment = episode.start_s + episode.dt * sample
    axes.axvline(moment, color=_GREY, lw=0.8, ls=":", label="moment of the discs")
    lowest = np.minimum(distance.min(axis=1, initial=np.inf), walls)
    top = float(np.quantile(lowest, 0.98)) if np.isfinite(lowest).all() else 0.0
    axes.set_ylim(0.0, 1.15 * max(top, 1.5 * contact_m))
    asks = "" if episode.bound is None else ", and the distance the safe set asks for"
    axes.set(ylabel="distance / m", title=f"Distance{asks}")
    _finish(axes)


def _draw_actions(axes: Any, episode: EpisodeRecord) -> None:
    """Draw what the ego did, over what is said about its steps."""
    steps = len(episode.nearest)
    edges: FloatArray = episode.start_s + episode.dt * np.arange(steps + 1, dtype=np.float64)
    for name, curve in episode.curves.items():
        wanted = name == "nominal"
        style = {"color": _GREY, "lw": 1.2, "ls": "--"} if wanted else {"color": _EGO, "lw": 1.4}
        axes.stairs(curve, edges, baseline=None, label=name, **style)
    for name, colour in _SHADES.items():
        where = episode.shades.get(name)
        if where is not None and where.any():  # shaded over the whole height
            axes.stairs(
                where.astype(np.float64),
                edges,
                fill=True,
                transform=axes.get_xaxis_transform(),
                color=colour,
                alpha=0.12,
                lw=0,
                label=name,
            )
    axes.axhline(0.0, color=_GREY, lw=0.6)
    title = "Ego's action, the part towards the partner that came nearest"
    title = title if "executed" in episode.curves else "What the ego does"
    axes.set(xlabel="time / s", ylabel=episode.quantity, title=title)
    _finish(axes)


def _finish(axes: Any) -> None:
    """Tidy the axes and put the legend below them, where no data are."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    axes.title.set_fontsize(10)
    axes.legend(
        frameon=False,
        fontsize=8,
        loc="upper center",
        bbox_to_anchor=(0.5, -0.22 if axes.get_subplotspec().rowspan.start else -0.1),
        borderaxespad=0.5,
        ncols=4,
        columnspacing=1.2,
    )
