"""A link that delays and loses packets, around any channel.

Tick t:     the inner channel makes packet t. It is lost, or arrives round(delay / tick period)
            ticks later (half to even). What is visible is a packet s <= t with the ages
            age(s) + (t - s): true in every tick, whatever happened to later packets.
Draws:      two uniforms per tick, one for the loss and one for the delay, needed or not. So two
            profiles under one seed meet the same luck, and differences between them are paired.
Stream:     ``comm.degrade.episode.{n}``, or ``comm.degrade.{link}.episode.{n}`` for a named link:
            every episode has another trace. `reset` with a seed makes it the root and starts at
            n = 0; without, n goes on.
Published:  ``compat="upstream"`` is the algorithm of the published wrapper: a drop stalls what is
            in flight, ages stand still while nothing arrives, late packets replace newer ones,
            every episode has the same trace. For comparison with old figures only.
"""

from collections import deque
from dataclasses import dataclass
from heapq import heappop, heappush
from math import sqrt
from typing import Final, Literal, Protocol, TypeAlias

import numpy as np

from cadenza.comm.codec import packet_to_bytes
from cadenza.comm.packets import SCHEMA_VERSION, CommChannel, CommPacket, aged, empty_packet
from cadenza.comm.profiles import DegradationProfile
from cadenza.core.checks import is_real
from cadenza.core.errors import ConfigurationError, InputError
from cadenza.core.seeding import derive_substream
from cadenza.core.timing import WelfordAccumulator

#: Which arriving packet becomes visible: only newer ones; all, each held back until its
#: predecessors arrived or were lost; or all as they come, older ones after newer ones too.
Ordering: TypeAlias = Literal["freshest", "fifo", "as_arrived"]
#: Unit of the ages in visible packets.
AoIUnit: TypeAlias = Literal["ticks", "ms", "s"]

#: Deliveries whose latencies are listed one by one; the other figures count all of them.
LISTED_LATENCIES: Final = 16_384
#: Uniforms drawn at once, an even number.
BLOCK: Final = 256
#: Name of the stream family.
STREAM: Final = "comm.degrade"

_OWNER: Final = "CommDegradationWrapper"


@dataclass(frozen=True, slots=True)
class CommDegradationStats:
    """What a link did since the last reset.

    Attributes:
        dropped: Packets lost.
        delivered: Packets that arrived.
        latency_ticks: Ticks from sending to arrival of the last `LISTED_LATENCIES` deliveries.
        reordered: Deliveries after a packet that was sent later.
        latency_mean: Mean over all deliveries, ticks; 0 before the first.
        latency_std: Standard deviation over all deliveries, ticks.
    """

    dropped: int = 0
    delivered: int = 0
    latency_ticks: tuple[int, ...] = ()
    reordered: int = 0
    latency_mean: float = 0.0
    latency_std: float = 0.0


class _Tally:
    """Running figures behind `CommDegradationStats`, in bounded memory."""

    def __init__(self) -> None:
        self.dropped = self.delivered = self.reordered = 0
        self._listed: deque[int] = deque(maxlen=LISTED_LATENCIES)
        self._all = WelfordAccumulator()

    def deliver(self, latency: int) -> None:
        self.delivered += 1
        self._listed.append(latency)
        self._all.add(latency)

    def stats(self) -> CommDegradationStats:
        mean, variance = self._all.current() if self.delivered else (0.0, 0.0)
        return CommDegradationStats(
            self.dropped,
            self.delivered,
            tuple(self._listed),
            self.reordered,
            mean,
            sqrt(variance),
        )


class _Link(Protocol):
    """One episode of a link."""

    tally: _Tally

    def carry(self, tick: int, packet: CommPacket) -> tuple[CommPacket, int]:
        """Send ``packet``; return what is visible, and what its ages lack, ticks."""
        ...


class _TrueLink:
    """The link of the module's header."""

    def __init__(
        self,
        profile: DegradationProfile,
        tick_period_ms: float,
        ordering: Ordering,
        visible: CommPacket,
        rng: np.random.Generator,
    ) -> None:
        self.tally = _Tally()
        self._profile, self._period, self._rng = profile, tick_period_ms, rng
        self._uniforms: list[float] = []
        self._in_order = ordering == "fifo"
        self._backwards = ordering == "as_arrived"
        self._visible, self._sent = visible, 0
        self._newest = self._last_release = 0
        self._flying: list[tuple[int, int, CommPacket]] = []  # a heap of (release, sent, packet)
        self._bad_chance = profile.bad_share
        self._after_good, self._after_bad = profile.bad_after_good, profile.bad_after_bad
        self._free_at_ms = 0.0

    def carry(self, tick: int, packet: CommPacket) -> tuple[CommPacket, int]:
        profile = self._profile
        if not self._uniforms:  # in blocks: one call of the generator costs as much as the rest
            self._uniforms = self._rng.random(BLOCK).tolist()[::-1]
        u_loss, u_delay = self._uniforms.pop(), self._uniforms.pop()
        rate = profile.bandwidth_kbps
        queueing_ms = 0.0 if rate is None else self._queueing_ms(tick, packet, rate)
        if self._is_lost(u_loss):
            self.tally.dropped += 1
        else:
            delay_ms = queueing_ms + profile.latency_ms(u_delay)
            release = tick + round(delay_ms / self._period)
            if self._in_order:
                release = self._last_release = max(release, self._last_release)
            heappush(self._flying, (release, tick, packet))
        while self._flying and self._flying[0][0] <= tick:
            self._receive(tick, *heappop(self._flying)[1:])
        return self._visible, tick - self._sent

    def _receive(self, tick: int, sent: int, packet: CommPacket) -> None:
        self.tally.deliver(tick - sent)
        is_newer = sent > self._newest
        self._newest = max(sent, self._newest)
        self.tally.reordered += not is_newer
        if is_newer or self._backwards:
            self._visible, self._sent = packet, sent

    def _is_lost(self, u: float) -> bool:
        """Return whether this tick's packet is lost; one uniform decides on spell and loss."""
        chance = self._bad_chance
        self._bad_chance = self._after_bad if u < chance else self._after_good
        return u < chance * self._profile.burst_loss

    def _queueing_ms(self, tick: int, packet: CommPacket, rate_kbps: float) -> float:
        """Return the time until the sender has sent ``packet``, lost later or not."""
        now = tick * self._period
        sending_ms = 8 * len(packet_to_bytes(packet)) / rate_kbps
        self._free_at_ms = max(now, self._free_at_ms) + sending_ms
        return self._free_at_ms - now


class _PublishedLink:
    """The link of ``compat="upstream"``, faults included."""

    def __init__(
        self,
        profile: DegradationProfile,
        tick_period_ms: float,
        visible: CommPacket,
        rng: np.random.Generator,
    ) -> None:
        self.tally = _Tally()
        self._profile, self._period, self._rng = profile, tick_period_ms, rng
        self._visible = visible
        self._flying: list[tuple[int, int, CommPacket]] = []  # (release, sent, packet), as sent

    def carry(self, tick: int, packet: CommPacket) -> tuple[CommPacket, int]:
        if self._profile.drop_rate > 0.0 and self._rng.random() < self._profile.drop_rate:
            self.tally.dropped += 1
            self._visible = aged(self._visible, 1)
            return self._visible, 0
        self._flying.append((tick + self._delay_ticks(), tick, packet))
        due = [entry for entry in self._flying if entry[0] <= tick]
        if due:
            self._flying = [entry for entry in self._flying if entry[0] > tick]
            for release, sent, _ in due:
                self.tally.deliver(release - sent)
            _, sent, winner = max(due, key=lambda entry: entry[1])
            self._visible = aged(winner, tick - sent)
        return self._visible, 0

    def _delay_ticks(self) -> int:
        mean, std = self._profile.latency_mean_ms, self._profile.latency_std_ms
        delay_ms = mean if std == 0.0 else float(self._rng.normal(mean, std))
        return round(min(2.0 * mean, max(0.0, delay_ms)) / self._period)


class CommDegradationWrapper:
    """A channel whose packets arrive late or never; see the module for what it does.

    Args:
        channel: Makes the packets; asked in every tick, also for packets that are lost.
        profile: What the link does to them.
        tick_period_ms: Time per call of `encode`, ms.
        root_seed: Root of the streams until `reset` brings another.
        ordering: Which arriving packet becomes visible.
        aoi_unit: Unit of the ages in visible packets; the inner channel counts in ticks.
        link: Name of the link, for links that must not share their luck.
        compat: ``"upstream"`` for the published algorithm.

    Raises:
        InputError: ``tick_period_ms`` is not a finite number > 0.
        ConfigurationError: An option without effect beside ``compat``, or an unknown one.
    """

    def __init__(
        self,
        channel: CommChannel,
        profile: DegradationProfile,
        *,
        tick_period_ms: float = 1.0,
        root_seed: int = 0,
        ordering: Ordering = "freshest",
        aoi_unit: AoIUnit = "ticks",
        link: str = "",
        compat: Literal["upstream"] | None = None,
    ) -> None:
        if not (is_real(tick_period_ms) and 0.0 < tick_period_ms < float("inf")):
            raise InputError(
                f"{_OWNER}: expected tick_period_ms > 0 and finite, got {tick_period_ms!r}."
            )
        _require_options(profile, ordering, aoi_unit, link, compat)
        self._channel, self._profile, self._period = channel, profile, float(tick_period_ms)
        self._root_seed, self._compat = root_seed, compat
        self._ordering: Ordering = ordering
        self._unit = {"ticks": 1.0, "ms": self._period, "s": 1e-3 * self._period}[aoi_unit]
        self._stream = f"{STREAM}.{link}" if link else STREAM
        self._next_episode = 0
        self._begin()

    @property
    def profile(self) -> DegradationProfile:
        """What the link does to packets."""
        return self._profile

    @property
    def stats(self) -> CommDegradationStats:
        """Figures since the last reset."""
        return self._link.tally.stats()

    def reset(self, *, seed: int | None = None) -> None:
        """Start an episode: nothing visible, nothing in flight, another trace.

        Args:
            seed: New root seed, whose first episode this is; None goes on to the next episode of
                the present root. The first call after construction is the first episode.

        Raises:
            InputError: ``seed`` is not an integer >= 0.
        """
        if seed is not None:
            self._root_seed, self._next_episode = seed, 0
        self._begin()
        self._next_episode += 1
        self._channel.reset(seed=self._root_seed)

    def encode(self, state: object) -> CommPacket:
        """Send what ``state`` says, and return what is visible now, with its true ages."""
        self._tick += 1
        visible, lacking = self._link.carry(self._tick, self._channel.encode(state))
        return aged(visible, lacking, unit=self._unit)

    def decode(self, packet: CommPacket) -> dict[str, object]:
        """Return what the inner channel reads from ``packet``.

        Raises:
            ChamberCommError: The packet breaks the contract.
        """
        return self._channel.decode(packet)

    def _begin(self) -> None:
        self._tick = 0
        nothing = empty_packet(getattr(self._channel, "schema_version", SCHEMA_VERSION))
        name = self._stream if self._compat else f"{self._stream}.episode.{self._next_episode}"
        rng = derive_substream(name, root_seed=self._root_seed).default_rng()
        self._link: _Link = (
            _PublishedLink(self._profile, self._period, nothing, rng)
            if self._compat
            else _TrueLink(self._profile, self._period, self._ordering, nothing, rng)
        )


def _require_options(
    profile: DegradationProfile, ordering: str, aoi_unit: str, link: str, compat: str | None
) -> None:
    """Raise unless every option is known, and has an effect beside ``compat``."""
    for name, value, known in (
        ("ordering", ordering, ("freshest", "fifo", "as_arrived")),
        ("aoi_unit", aoi_unit, ("ticks", "ms", "s")),
        ("compat", compat, (None, "upstream")),
    ):
        if value not in known:
            raise ConfigurationError(f"{_OWNER}: expected {name} among {known}, got {value!r}.")
    new = (ordering, aoi_unit, link, profile.burst_length, profile.bandwidth_kbps)
    if compat and new != ("freshest", "ticks", "", None, None):
        raise ConfigurationError(
            f"{_OWNER}: expected the defaults of ordering, aoi_unit and link and a profile without "
            f"bursts and bandwidth beside compat='upstream', got {new}; the published algorithm "
            "has none of them."
        )
