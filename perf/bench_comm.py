"""Packets: one encode, alone and on a degraded link, and its bytes.

Two robots, as in `crossing`; one encode per control step is what an evaluation with a link adds.

Usage:  python -m perf.bench_comm
"""

from functools import partial

from cadenza.comm import (
    URLLC_3GPP_R17,
    CommDegradationWrapper,
    FixedFormatCommChannel,
    PerLinkChannel,
    packet_from_bytes,
    packet_to_bytes,
)
from cadenza.envs.crossing import CrossingEnv
from perf.timing import Row, measure_us, print_table

REPEATS = 20_000
#: Promised time of one encode, microseconds.
BUDGET_ENCODE_US = 20.0


def rows() -> list[Row]:
    """Return all measurements of the channels."""
    env = CrossingEnv()
    env.reset(seed=0)
    state = env.comm_state()
    lossy = URLLC_3GPP_R17["lossy"]
    channels = {
        "encode, fixed format": FixedFormatCommChannel(),
        "encode, lossy link": CommDegradationWrapper(FixedFormatCommChannel(), lossy),
        "encode, one link per robot": PerLinkChannel({"partner": lossy}, receiver="ego"),
    }
    packet = FixedFormatCommChannel().encode(state)
    data = packet_to_bytes(packet)
    return [
        *(
            Row(
                name,
                measure_us(partial(channel.encode, state), REPEATS),
                budget=BUDGET_ENCODE_US,
            )
            for name, channel in channels.items()
        ),
        Row("packet to bytes", measure_us(partial(packet_to_bytes, packet), REPEATS)),
        Row("bytes to packet", measure_us(partial(packet_from_bytes, data), REPEATS)),
    ]


if __name__ == "__main__":
    print_table((__doc__ or "").splitlines()[0], rows())
