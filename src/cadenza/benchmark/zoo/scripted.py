"""The free families: the task's scripted partners, their options drawn from declared ranges.

They cost no training, so a learned population has to beat them. ``scripted`` varies how partners
behave, ``physical`` also the bodies they act with: `cadenza.partners.varied_body`. Draws follow the
sorted option names, uniform, rounded to four decimals or to whole numbers, from one stream for each
member.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from cadenza.benchmark.zoo.config import ZooConfig
from cadenza.core.errors import ConfigurationError
from cadenza.core.seeding import derive_substream
from cadenza.partners.varied_body import INNER, VARIED_BODY
from cadenza.partners.zoo_manifest import ZooMember

#: Option to its range; one that a comma splits, to the range of each part.
Box = Mapping[str, tuple[float, float]]

#: Classes of each task and the ranges of their options, in the options' units.
RANGES: Final[Mapping[str, Mapping[str, Box]]] = {
    "crossing": {
        "crossing_goal_seeker": {
            "max_speed": (0.4, 1.6),
            "position_gain": (0.3, 1.2),
            "velocity_gain": (1.5, 4.0),
        },
        "crossing_wanderer": {"max_speed": (0.3, 1.2), "knot_interval": (0.25, 1.5)},
        "crossing_late_braker": {"max_acceleration": (0.2, 0.5)},
        "crossing_chaser": {"max_acceleration": (0.2, 0.5)},
        "crossing_stationary": {},
    },
    "mpe_cooperative_push": {
        "scripted_heuristic": {
            "target_xy": (-0.8, 0.8),
            "gain": (0.5, 3.0),
            "max_speed": (0.3, 1.0),
        }
    },
    # These draw speed, delay, path, gain and lag anew for every episode.
    "cocarry_mj": {"cocarry_leader": {}, "cocarry_shared": {}, "cocarry_follower": {}},
    "handover_mj": {"handover_presenter": {}, "handover_biased": {}, "handover_late": {}},
}
#: How bodies vary: control rate, packet loss, delay and action limits.
BODIES: Final[Box] = {
    "hold_steps": (1, 4),
    "loss": (0.0, 0.4),
    "delay_steps": (0, 5),
    "reach": (0.5, 1.0),
}
#: Options that hold a point, "x,y".
_POINTS: Final = frozenset({"target_xy"})
#: Options that hold a whole number, both ends of the range included.
_WHOLE: Final = frozenset({"hold_steps", "delay_steps"})


def draw_options(box: Box, name: str, *, seed: int) -> dict[str, str]:
    """Return one value per option of ``box``, from the stream ``zoo.scripted.<name>``."""
    rng = derive_substream(f"zoo.scripted.{name}", root_seed=seed).default_rng()

    def drawn(key: str) -> str:
        low, high = box[key]
        if key in _WHOLE:
            return str(rng.integers(int(low), int(high) + 1))
        return repr(round(float(rng.uniform(low, high)), 4))

    return {key: ",".join(drawn(key) for _ in range(1 + (key in _POINTS))) for key in sorted(box)}


def scripted_members(config: ZooConfig) -> Sequence[ZooMember]:
    """Return the population of ``scripted`` or ``physical``, classes in turn.

    Raises:
        ConfigurationError: The task has no scripted partners with declared ranges, or fewer
            different ones than the population wants.
    """
    ranges = RANGES.get(config.task, {})
    physical = config.method == "physical"
    # A class without options is one partner, so it comes once; the others go on in turn.
    varied = [name for name in ranges if physical or ranges[name]]
    if not ranges or (not varied and config.population > len(ranges)):
        raise ConfigurationError(
            f"{config.method}: expected a task among {', '.join(RANGES)} and a population of at "
            f"most {len(ranges)}, got {config.task!r} and {config.population}; declare ranges for "
            "its partners in cadenza.benchmark.zoo.scripted.RANGES."
        )
    classes = list(ranges)
    classes += [varied[k % len(varied)] for k in range(config.population - len(classes))]
    members: list[ZooMember] = []
    for index, class_name in enumerate(classes[: config.population]):
        name = f"{config.method}-s{config.seed}-{index}"
        options = draw_options(ranges[class_name], name, seed=config.seed)
        if physical:
            nested = {f"{INNER}{key}": text for key, text in options.items()}
            body = draw_options(BODIES, f"{name}.body", seed=config.seed)
            options = {"partner": class_name, **nested, **body}
        members.append(
            ZooMember(
                name=name,
                family=config.method,
                class_name=VARIED_BODY if physical else class_name,
                options=options,
                seed=config.seed,
            )
        )
    return members
