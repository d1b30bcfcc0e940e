"""Record of one episode, and its picture: where everyone went, how near, what the filter changed.

A scene in three dimensions is shown along a direction at right angles to the line of centres at
the closest moment, so that the distance at that moment appears in its true size.

Axes:  T steps, N partners, d Cartesian dimensions.
Units: m, m/s, m/s^2, s.
"""

import io
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.extras import load_extra
from cadenza.safety.verifier.adversaries import BoolArray, dot, length, unit
from cadenza.safety.verifier.casts import Cast
from cadenza.safety.verifier.conditions import Condition
from cadenza.safety.verifier.config import Scenario, VerifierConfig
from cadenza.safety.verifier.motion import Motion

_FIGURE_INCHES: Final = (12.0, 7.0)
_FIGURE_DPI: Final = 120
_EGO: Final = "#1d4ed8"
_ALERT: Final = "#b91c1c"
_GREY: Final = "#64748b"
_PARTNERS: Final = ("#c2410c", "#a16207", "#7e22ce", "#0f766e", "#be185d", "#4d7c0f")
#: Partners with a colour and a name, the nearest ones; the others are grey.
_NAMED: Final = 6
#: Strategies in the title.
_TITLED: Final = 4
#: Discs drawn faintly along a path, the closest moment aside.
_GHOSTS: Final = 7
#: What is drawn: from the moment that somebody is this near, m, ...
_NEAR_M: Final = 2.5
#: ... until this long after the closest moment, s.
_AFTERWARDS_S: Final = 1.0
#: The closest moment is the first within this share of the smallest free distance or overlap, ...
_AS_NEAR: Final = 0.05
#: ... taken as this at least, m.
_SAME_M: Final = 0.01


@dataclass(frozen=True, slots=True, eq=False)
class StepRecord:
    """One step of a batch of B episodes."""

    motion: Motion  # Where everyone is at its start
    nominal: FloatArray  # Nominal actions, shape (B, d), m/s^2
    action: FloatArray  # Executed actions, shape (B, d), m/s^2
    nearest: FloatArray  # Smallest distance of the centres within it, shape (B, N), m
    solved: BoolArray  # Whether the filter met every row, shape (B,)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EpisodeRecord:
    """One whole episode."""

    scenario: Scenario  # What was played
    nominal_name: str  # The ego's nominal controller
    adversary_names: list[str]  # The partners' strategies, N names
    ego_path: FloatArray  # Ego's centre at every sample, shape (T + 1, d), m
    partner_paths: FloatArray  # Partners' centres, shape (T + 1, N, d), m
    distance: FloatArray  # Distance of the centres at every sample, shape (T + 1, N), m
    bound: FloatArray  # Distance that the safe set asks for at every sample, shape (T + 1, N), m
    nearest: FloatArray  # Smallest distance within each step, shape (T, N), m
    nominal: FloatArray  # Nominal action of each step, shape (T, d), m/s^2
    action: FloatArray  # Executed action of each step, shape (T, d), m/s^2
    solved: BoolArray  # Whether the filter met every row, shape (T,)
    start_s: float = 0.0  # Time of the first sample, s

    @classmethod
    def of(
        cls,
        scenario: Scenario,
        condition: Condition,
        cast: Cast,
        records: list[StepRecord],
        end: Motion,
        episode: int,
    ) -> "EpisodeRecord":
        """Return one episode of a batch, which ended in ``end``."""
        motions = [*(record.motion for record in records), end]
        ego_path, paths, offset, relative = (
            np.stack([getattr(motion, name)[episode] for motion in motions])
            for name in ("ego_position", "positions", "offset", "relative")
        )
        distance = length(offset)
        closing = -dot(offset, relative) / np.maximum(distance, 1e-12)
        nominal_name, adversary_names = cast.players(episode)
        return cls(
            scenario=scenario,
            nominal_name=nominal_name,
            adversary_names=adversary_names,
            ego_path=ego_path,
            partner_paths=paths,
            distance=distance,
            bound=condition.bound_m(closing),
            nearest=np.stack([record.nearest[episode] for record in records]),
            nominal=np.stack([record.nominal[episode] for record in records]),
            action=np.stack([record.action[episode] for record in records]),
            solved=np.array([record.solved[episode] for record in records]),
        )

    @property
    def min_distance(self) -> float:
        """Smallest distance of the centres in the episode, m."""
        return float(self.nearest.min())

    def part(self, first: int, last: int) -> "EpisodeRecord":
        """Return the steps ``first`` to ``last``, the latter excluded."""
        samples = ("ego_path", "partner_paths", "distance", "bound")
        steps = ("nearest", "nominal", "action", "solved")
        parts = {name: getattr(self, name)[first : last + 1] for name in samples}
        parts |= {name: getattr(self, name)[first:last] for name in steps}
        return replace(self, **parts, start_s=self.start_s + first * self.scenario.dt)

    def summary(self) -> dict[str, Any]:
        """Return what identifies the episode, as JSON values."""
        step, partner = np.unravel_index(int(self.nearest.argmin()), self.nearest.shape)
        return {
            "scenario": self.scenario.name,
            "nominal": self.nominal_name,
            "adversaries": list(self.adversary_names),
            "closest_partner": int(partner),
            "closest_at_s": float(step * self.scenario.dt),
            "min_distance_m": self.min_distance,
        }


def draw_episode(episode: EpisodeRecord, config: VerifierConfig) -> bytes:
    """Return a PNG of ``episode``; equal episodes give equal bytes on one machine."""
    figure: Any = load_extra("matplotlib.figure").Figure(
        figsize=_FIGURE_INCHES, dpi=_FIGURE_DPI, layout="constrained"
    )
    grid: Any = figure.add_gridspec(2, 2, width_ratios=(1.0, 1.1))
    episode = telling_part(episode, config.contact_m)
    step, partner = closest_moment(episode, config.contact_m)
    _draw_paths(figure.add_subplot(grid[:, 0]), episode, config, step, partner)
    _draw_distances(
        figure.add_subplot(grid[0, 1]), episode, config, nearest_sample(episode, step, partner)
    )
    _draw_actions(figure.add_subplot(grid[1, 1]), episode, partner)
    figure.suptitle(_title(episode, config), fontsize=11)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def _title(episode: EpisodeRecord, config: VerifierConfig) -> str:
    scenario = episode.scenario
    margin = episode.min_distance - config.contact_m
    verdict = f"overlap of {-margin:.4g} m" if margin < -1e-9 else f"{max(margin, 0.0):.2g} m free"
    rows = config.barrier + ("" if config.compat is None else f", compat={config.compat}")
    counted = Counter(episode.adversary_names).most_common()
    shown = [name if count == 1 else f"{count} x {name}" for name, count in counted[:_TITLED]]
    rest = sum(count for _, count in counted[_TITLED:])
    opponents = ", ".join(shown) + (f" and {rest} more" if rest else "")
    return (
        f"Closest episode: {verdict}; ego “{episode.nominal_name}” against “{opponents}”\n"
        f"{scenario.dim}-D, plant {scenario.plant}, control step {scenario.dt:g} s, packet age "
        f"{scenario.delay}, row {rows}"
    )


def choose_colours(episode: EpisodeRecord) -> dict[int, str]:
    """Return the colours of the partners that come nearest, by index; others are grey."""
    order = np.argsort(episode.nearest.min(axis=0), kind="stable")[:_NAMED]
    return dict(zip(sorted(order.tolist()), _PARTNERS, strict=False))


def telling_part(episode: EpisodeRecord, contact_m: float) -> EpisodeRecord:
    """Return the episode around its closest moment: while somebody is near, plus a second."""
    step, _ = closest_moment(episode, contact_m)
    steps, dt = len(episode.nearest), episode.scenario.dt
    far = np.flatnonzero(episode.nearest.min(axis=1) > _NEAR_M)
    before, after = far[far < step], far[far > step]
    first = int(before[-1]) if before.size else 0
    last = int(after[0]) if after.size else steps
    return episode.part(first, min(last, step + max(10, round(_AFTERWARDS_S / dt)), steps))


def closest_moment(episode: EpisodeRecord, contact_m: float) -> tuple[int, int]:
    """Return the first step that comes about as near as any, and the partner of that step.

    An ego that is chased keeps a distance for seconds; how it got there is what one wants to see.
    """
    nearest = episode.nearest.min(axis=1)
    lowest = float(nearest.min())
    step = int(np.argmax(nearest <= lowest + _AS_NEAR * max(abs(contact_m - lowest), _SAME_M)))
    return step, int(episode.nearest[step].argmin())


def nearest_sample(episode: EpisodeRecord, step: int, partner: int) -> int:
    """Return the end of ``step`` that is nearer: discs are drawn at samples."""
    ends = episode.distance[step : step + 2, partner]
    return step + int(ends.argmin())


def drawing_plane(episode: EpisodeRecord, sample: int, partner: int) -> FloatArray:
    """Return two orthonormal axes to draw in, shape (2, d)."""
    dim = episode.ego_path.shape[1]
    if dim == 2:
        return np.eye(2)
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


def _draw_paths(
    axes: Any, episode: EpisodeRecord, config: VerifierConfig, step: int, partner: int
) -> None:
    """Draw the trajectories, faint discs at equal times and solid ones at the closest moment."""
    sample = nearest_sample(episode, step, partner)
    plane = drawing_plane(episode, sample, partner)
    dt = episode.scenario.dt
    paths = [(episode.ego_path @ plane.T, config.ego_radius, _EGO, "ego")]
    colours = choose_colours(episode)
    for j in range(episode.partner_paths.shape[1]):
        label = "partner" if episode.partner_paths.shape[1] == 1 else f"partner {j + 1}"
        label, colour = (label, colours[j]) if j in colours else ("", _GREY)
        path = episode.partner_paths[:, j] @ plane.T
        paths.append((path, config.partner_radius, colour, label))
    ghosts = np.linspace(0, len(episode.ego_path) - 1, _GHOSTS).round().astype(int)
    circle = load_extra("matplotlib.patches").Circle
    for path, radius, colour, label in paths:
        axes.plot(path[:, 0], path[:, 1], color=colour, lw=1.4, label=label or None)
        axes.plot(*path[0], "o", color=colour, mfc="white", ms=5, zorder=4)
        for k, alpha in (*((k, 0.12) for k in ghosts), (sample, 0.55)):
            axes.add_patch(circle(tuple(path[k]), radius, color=colour, alpha=alpha, lw=0))
    axes.set_aspect("equal", adjustable="datalim")
    seen = "" if plane.shape[1] == 2 else ", seen across the line of centres"
    others = "" if len(colours) == episode.partner_paths.shape[1] else "; grey: other partners"
    names = ("x / m", "y / m") if plane.shape[1] == 2 else ("line of centres / m", "across / m")
    moment = episode.start_s + sample * dt
    axes.set(
        xlabel=names[0],
        ylabel=names[1],
        title=f"Paths from ○{seen}{others}\nsolid discs: the first moment about as near as any, "
        f"t = {moment:.3g} s",
    )
    _finish(axes)


def _draw_distances(axes: Any, episode: EpisodeRecord, config: VerifierConfig, sample: int) -> None:
    """Draw distance and safe-set bound over time, with the contact line and the discs' moment."""
    times = episode.start_s + episode.scenario.dt * np.arange(len(episode.distance))
    several, colours = episode.distance.shape[1] > 1, choose_colours(episode)
    for j in range(episode.distance.shape[1]):
        colour = colours.get(j, _GREY)
        name = f"partner {j + 1}" if several else "distance of the centres"
        name = name if j in colours else None
        axes.plot(times, episode.distance[:, j], color=colour, lw=1.5, label=name)
        bound = "safe-set bound" if j == 0 else None
        axes.plot(times, episode.bound[:, j], color=colour, lw=1.0, ls="--", label=bound)
    axes.axhline(config.contact_m, color=_ALERT, lw=1.2, label=f"contact, {config.contact_m:g} m")
    moment = episode.start_s + episode.scenario.dt * sample
    axes.axvline(moment, color=_GREY, lw=0.8, ls=":", label="moment of the discs")
    top = float(np.quantile(episode.distance.min(axis=1), 0.98))
    axes.set_ylim(0.0, 1.15 * max(top, 1.5 * config.contact_m))
    axes.set(ylabel="distance / m", title="Distance, and the distance the safe set asks for")
    _finish(axes)


def _draw_actions(axes: Any, episode: EpisodeRecord, partner: int) -> None:
    """Draw nominal and executed acceleration towards the partner that came closest."""
    dt = episode.scenario.dt
    ahead = unit(episode.partner_paths[:-1, partner] - episode.ego_path[:-1])
    edges: FloatArray = episode.start_s + dt * np.arange(len(ahead) + 1, dtype=np.float64)
    wanted, done = dot(ahead, episode.nominal), dot(ahead, episode.action)
    axes.stairs(wanted, edges, baseline=None, color=_GREY, lw=1.2, ls="--", label="nominal")
    axes.stairs(done, edges, baseline=None, color=_EGO, lw=1.4, label="executed")
    for where, colour, label in (
        (np.abs(wanted - done) > 1e-9, _EGO, "filter changed it"),
        (~episode.solved, _ALERT, "no action meets every row"),
    ):
        if where.any():  # shaded over the whole height
            axes.stairs(
                where.astype(np.float64),
                edges,
                fill=True,
                transform=axes.get_xaxis_transform(),
                color=colour,
                alpha=0.12,
                lw=0,
                label=label,
            )
    axes.axhline(0.0, color=_GREY, lw=0.6)
    which = f"partner {partner + 1}" if episode.distance.shape[1] > 1 else "the partner"
    axes.set(
        xlabel="time / s",
        ylabel="acceleration / (m/s²)",
        title=f"Ego's action, the part towards {which}",
    )
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
