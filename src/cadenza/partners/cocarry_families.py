"""Partners of co-carry: families to train with, and families held out.

An episode's delay, speed, path, gain and the like are drawn at its start. Trained with: leaders,
sharing partners, followers and mixtures of them. Held out: `HELD_OUT_EASY`, which an ego that only
stays level carries with, and `HELD_OUT_HARD`, which ask it to take the other role.
"""

from typing import ClassVar, Final

import numpy as np

from cadenza.partners.cocarry import (
    FOLLOWER,
    LEADER,
    PATHS,
    SHARED,
    CoCarryPartner,
    Traits,
    cocarry_card,
)
from cadenza.partners.interface import PartnerCard
from cadenza.partners.options import NumberOption
from cadenza.partners.registry import register_partner

#: Held out, by what they ask of the ego.
HELD_OUT_EASY: Final = (
    "cocarry_low_arc",
    "cocarry_lagged_leader",
    "cocarry_pausing_leader",
    "cocarry_follower_turns_leader",
)
HELD_OUT_HARD: Final = (
    "cocarry_slow_follower",
    "cocarry_lagged_follower",
    "cocarry_leader_turns_follower",
)
#: Paths that training knows: all but the low arc.
_TRAINED_PATHS: Final = 4

_PATHS: Final = NumberOption(
    key="paths", default=_TRAINED_PATHS, low=1, high=_TRAINED_PATHS, low_excluded=False,
    summary=f"how many of the paths it takes: {', '.join(PATHS[:_TRAINED_PATHS])}",
)  # fmt: skip
_LEADERS: Final = NumberOption(
    key="leaders", default=0.6, low=0.0, high=1.0, low_excluded=False,
    summary="share of leaders",
)  # fmt: skip
_SHARING: Final = NumberOption(
    key="sharing", default=0.2, low=0.0, high=1.0, low_excluded=False,
    summary="share of sharing partners; the rest follows",
)  # fmt: skip


def draw_leader(rng: np.random.Generator, *, paths: int = _TRAINED_PATHS) -> Traits:
    """Return a leader: delay, speed, path, gain and lag at random."""
    traits = Traits.nominal(1)
    traits.delay[:], traits.speed[:] = rng.uniform(0.0, 1.5), rng.uniform(0.08, 0.18)
    traits.path[:], traits.gain[:] = rng.integers(paths), rng.uniform(0.3, 0.7)
    traits.lag[:] = rng.integers(4)
    return traits


def draw_follower(rng: np.random.Generator, role: int = FOLLOWER) -> Traits:
    """Return a follower or a sharing partner: gain and feed-forward at random."""
    traits = Traits.nominal(1, role)
    traits.gain[:], traits.feed[:] = rng.uniform(0.3, 0.6), rng.uniform(0.3, 0.9)
    return traits


@register_partner("cocarry_nominal")
class CoCarryNominal(CoCarryPartner):
    """Leads straight to the goal, at once and at one speed."""

    card: ClassVar[PartnerCard | None] = cocarry_card("Leads straight to the goal, punctually.")

    def draw(self, rng: np.random.Generator) -> Traits:
        """Return the nominal leader."""
        del rng
        return Traits.nominal(1)


@register_partner("cocarry_leader")
class CoCarryLeader(CoCarryPartner):
    """Leads: knows the goal and looks at nobody."""

    number_options: ClassVar[tuple[NumberOption, ...]] = (_PATHS,)
    card: ClassVar[PartnerCard | None] = cocarry_card(
        "Leads to the goal after a delay, along one of four paths.", number_options
    )

    def draw(self, rng: np.random.Generator) -> Traits:
        """Return a leader."""
        return draw_leader(rng, paths=int(self.number(_PATHS)))


@register_partner("cocarry_shared")
class CoCarryShared(CoCarryPartner):
    """Stays level with the ego and nudges towards the goal while in step."""

    card: ClassVar[PartnerCard | None] = cocarry_card(
        "Stays level with the ego and nudges towards the goal while in step."
    )

    def draw(self, rng: np.random.Generator) -> Traits:
        """Return a sharing partner."""
        return draw_follower(rng, SHARED)


@register_partner("cocarry_follower")
class CoCarryFollower(CoCarryPartner):
    """Stays level with the ego and does not know the goal."""

    card: ClassVar[PartnerCard | None] = cocarry_card(
        "Stays level with the ego without knowing the goal."
    )

    def draw(self, rng: np.random.Generator) -> Traits:
        """Return a follower."""
        return draw_follower(rng)


@register_partner("cocarry_mixed")
class CoCarryMixed(CoCarryPartner):
    """Another role every episode."""

    number_options: ClassVar[tuple[NumberOption, ...]] = (_LEADERS, _SHARING, _PATHS)
    card: ClassVar[PartnerCard | None] = cocarry_card(
        "Leads, shares or follows, another role every episode.", number_options
    )

    def draw(self, rng: np.random.Generator) -> Traits:
        """Return a leader, a sharing partner or a follower."""
        leaders, place = self.number(_LEADERS), rng.random()
        if place < leaders:
            return draw_leader(rng, paths=int(self.number(_PATHS)))
        return draw_follower(rng, SHARED if place < leaders + self.number(_SHARING) else FOLLOWER)


@register_partner("cocarry_low_arc")
class CoCarryLowArc(CoCarryPartner):
    """Leads along an arc that first goes down; held out, easy."""

    card: ClassVar[PartnerCard | None] = cocarry_card("Held out, easy: leads along a low arc.")

    def draw(self, rng: np.random.Generator) -> Traits:
        """Return a leader on the low arc."""
        traits = draw_leader(rng)
        traits.path[:] = PATHS.index("low_arc")
        return traits


@register_partner("cocarry_lagged_leader")
class CoCarryLaggedLeader(CoCarryPartner):
    """Leads and does what it decided 4 to 6 ticks ago; held out, easy."""

    card: ClassVar[PartnerCard | None] = cocarry_card(
        "Held out, easy: leads with a lag of 4 to 6 ticks."
    )

    def draw(self, rng: np.random.Generator) -> Traits:
        """Return a leader of long lag."""
        traits = draw_leader(rng)
        traits.lag[:] = rng.integers(4, 7)
        return traits


@register_partner("cocarry_pausing_leader")
class CoCarryPausingLeader(CoCarryPartner):
    """Leads and stands still for a second half-way; held out, easy."""

    card: ClassVar[PartnerCard | None] = cocarry_card(
        "Held out, easy: leads and stops for 1 s half-way."
    )

    def draw(self, rng: np.random.Generator) -> Traits:
        """Return a leader that stops."""
        traits = draw_leader(rng)
        traits.pause[:] = 1.0
        return traits


@register_partner("cocarry_follower_turns_leader")
class CoCarryFollowerTurnsLeader(CoCarryPartner):
    """Follows for two to four seconds, then leads; held out, easy."""

    card: ClassVar[PartnerCard | None] = cocarry_card(
        "Held out, easy: follows for 2 to 4 s, then leads."
    )

    def draw(self, rng: np.random.Generator) -> Traits:
        """Return a follower that will lead."""
        traits = draw_follower(rng)
        traits.later[:], traits.change_at[:] = LEADER, rng.uniform(2.0, 4.0)
        traits.speed[:] = rng.uniform(0.08, 0.18)
        return traits


@register_partner("cocarry_slow_follower")
class CoCarrySlowFollower(CoCarryPartner):
    """Follows reluctantly; held out, hard."""

    card: ClassVar[PartnerCard | None] = cocarry_card("Held out, hard: follows reluctantly.")

    def draw(self, rng: np.random.Generator) -> Traits:
        """Return a follower of small gain and feed-forward."""
        traits = draw_follower(rng)
        traits.gain[:], traits.feed[:] = rng.uniform(0.15, 0.3), rng.uniform(0.0, 0.2)
        return traits


@register_partner("cocarry_lagged_follower")
class CoCarryLaggedFollower(CoCarryPartner):
    """Follows with what it saw 4 to 6 ticks ago; held out, hard."""

    card: ClassVar[PartnerCard | None] = cocarry_card(
        "Held out, hard: follows with a lag of 4 to 6 ticks."
    )

    def draw(self, rng: np.random.Generator) -> Traits:
        """Return a follower of long lag."""
        traits = draw_follower(rng)
        traits.lag[:] = rng.integers(4, 7)
        return traits


@register_partner("cocarry_leader_turns_follower")
class CoCarryLeaderTurnsFollower(CoCarryPartner):
    """Leads half of the way, then follows; held out, hard."""

    card: ClassVar[PartnerCard | None] = cocarry_card(
        "Held out, hard: leads half of the way, then follows."
    )

    def draw(self, rng: np.random.Generator) -> Traits:
        """Return a leader that will follow."""
        traits = draw_leader(rng)
        traits.later[:], traits.feed[:] = FOLLOWER, rng.uniform(0.3, 0.9)
        return traits
