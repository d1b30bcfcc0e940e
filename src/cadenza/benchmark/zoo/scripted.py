"""The free family: the task's scripted partners, their options drawn from declared ranges.

It costs no training, so a learned population has to beat it. Draws follow the sorted option names,
uniform, rounded to four decimals, from one stream for each member.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from cadenza.benchmark.zoo.config import ZooConfig
from cadenza.core.errors import ConfigurationError
from cadenza.core.seeding import derive_substream
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
}
#: Options that hold a point, "x,y".
_POINTS: Final = frozenset({"target_xy"})


def draw_options(box: Box, name: str, *, seed: int) -> dict[str, str]:
    """Return one value per option of ``box``, from the stream ``zoo.scripted.<name>``."""
    rng = derive_substream(f"zoo.scripted.{name}", root_seed=seed).default_rng()
    return {
        key: ",".join(
            repr(round(float(rng.uniform(*box[key])), 4)) for _ in range(1 + (key in _POINTS))
        )
        for key in sorted(box)
    }


def scripted_members(config: ZooConfig) -> Sequence[ZooMember]:
    """Return the population, classes in turn.

    Raises:
        ConfigurationError: The task has no scripted partners with declared ranges, or fewer
            different ones than the population wants.
    """
    ranges = RANGES.get(config.task, {})
    varied = [name for name in ranges if ranges[name]]
    if not ranges or (not varied and config.population > len(ranges)):
        raise ConfigurationError(
            f"scripted: expected a task among {', '.join(RANGES)}, got {config.task!r}; declare "
            "ranges for its partners in cadenza.benchmark.zoo.scripted.RANGES."
        )
    # A class without options is one partner, so it comes once; the others go on in turn.
    classes = list(ranges)
    classes += [varied[k % len(varied)] for k in range(config.population - len(classes))]
    members: list[ZooMember] = []
    for index, class_name in enumerate(classes[: config.population]):
        name = f"scripted-s{config.seed}-{index}"
        options = draw_options(ranges[class_name], name, seed=config.seed)
        members.append(
            ZooMember(
                name=name,
                family="scripted",
                class_name=class_name,
                options=options,
                seed=config.seed,
            )
        )
    return members
