"""Packets: one encode, alone and on a degraded link, and its bytes.

Two robots, as in `crossing`; one encode per control step is what an evaluation with a link adds.

Usage:  python -m perf.bench_comm
"""

from functools import partial
from typing import Any

from cadenza.comm import (
    URLLC_3GPP_R17,
    CommChannel,
    CommDegradationWrapper,
    FixedFormatCommChannel,
    PerLinkChannel,
    packet_from_bytes,
    packet_to_bytes,
)
from cadenza.envs.crossing import CrossingEnv
from perf.timing import Row, measure_us, print_table

REPEATS = 20_000


def rows() -> list[Row]:
    """Return all measurements of the channels."""
    env = CrossingEnv()
    env.reset(seed=0)
    state = env.comm_state()
    lossy = URLLC_3GPP_R17["lossy"]
    degraded = CommDegradationWrapper(FixedFormatCommChannel(), lossy)
    links = PerLinkChannel({"partner": lossy}, receiver="ego")
    packet = FixedFormatCommChannel().encode(state)
    data = packet_to_bytes(packet)
    return [
        encode_row("fixed format", FixedFormatCommChannel(), state),
        encode_row("lossy link", degraded, state),
        encode_row("a lossy link and oneself", links, state),
        Row("packet to bytes", measure_us(partial(packet_to_bytes, packet), REPEATS)),
        Row("bytes to packet", measure_us(partial(packet_from_bytes, data), REPEATS)),
    ]


def encode_row(name: str, channel: CommChannel, state: dict[str, Any]) -> Row:
    """Time one encode."""
    return Row(f"encode, {name}", measure_us(partial(channel.encode, state), REPEATS))


if __name__ == "__main__":
    print_table((__doc__ or "").splitlines()[0], rows())
