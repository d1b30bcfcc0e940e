"""Episodes of an evaluation in 128 lanes, beside the scalar loop.

Task:     crossing behind the filter, and cooperative push without one; the ego is a network of two
          hidden layers of 64, the partner the one that training uses.
Protocol: CPU time of one torch thread; lanes and loop alternate in one process; medians. The world
          is open in both: what is timed is episodes.

Usage:  python -m perf.bench_evaluation
"""

import statistics
import time
from itertools import pairwise

import torch

from cadenza.aht.config import EnvConfig, PartnerConfig, SafetyConfig
from cadenza.benchmark.cells import initial_state_seed
from cadenza.benchmark.episodes import EpisodeTag, open_world, run_episode
from cadenza.benchmark.lanes import DEFAULT_LANES, open_lanes, play_lanes
from cadenza.benchmark.policies import EgoSeat, NetworkPolicy
from cadenza.benchmark.tasks import get_task
from cadenza.core.device import single_torch_thread
from cadenza.learn.nn.portable import Output, perceptron
from perf.timing import Row, print_table

#: Episodes per repeat.
IN_LANES, IN_LOOP, REPEATS = 4 * DEFAULT_LANES, 24, 3
#: Least ratios that we promise.
AIMS = {"crossing": 5.0, "mpe_cooperative_push": 10.0}
_HIDDEN = 64


def make_policy(seat: EgoSeat) -> NetworkPolicy:
    """Return a network that hardly moves: its episodes are long."""
    rng = torch.Generator().manual_seed(0)
    sizes = (seat.observation_dim, _HIDDEN, _HIDDEN, seat.action_dim)
    weights: list[torch.Tensor] = []
    for inputs, outputs in pairwise(sizes):
        weights += [torch.randn(outputs, inputs, generator=rng) * 0.02, torch.zeros(outputs)]
    output = Output(kind="mean", low=seat.low, high=seat.high)
    return NetworkPolicy(perceptron(weights, "tanh", output), seat)


def row(task: str) -> Row:
    """Time episodes of ``task``, with the filter where there is one."""
    spec = get_task(task)
    env = EnvConfig(task=task, episode_length=spec.episode_length)
    partner = PartnerConfig(class_name=spec.seen_partner)
    safety = SafetyConfig(enabled=spec.supports_safety)
    tags = [
        EpisodeTag(
            seed=0,
            episode_idx=i,
            initial_state_seed=initial_state_seed(0, i),
            policy="ego",
            condition="any",
            partner=partner.class_name,
        )
        for i in range(IN_LANES)
    ]
    rates: dict[str, list[float]] = {"lanes": [], "loop": []}
    with (
        single_torch_thread(),
        open_lanes(
            env=env, partner=partner, safety=safety, lanes=DEFAULT_LANES, make_policy=make_policy
        ) as many,
        open_world(
            env=env, partner=partner, safety=safety, root_seed=0, make_policy=make_policy
        ) as one,
    ):
        for _ in range(REPEATS + 1):
            start = time.process_time()
            played = len(dict(play_lanes(many, tags)))
            middle = time.process_time()
            alone = len([run_episode(one, tag) for tag in tags[:IN_LOOP]])
            rates["lanes"].append(played / (middle - start))
            rates["loop"].append(alone / (time.process_time() - middle))
    return Row(
        f"{task}: evaluation, {DEFAULT_LANES} lanes, " + ("filter" if safety.enabled else "plain"),
        statistics.median(rates["lanes"][1:]),
        statistics.median(rates["loop"][1:]),
        unit="episodes/s",
        better="higher",
        aim=AIMS[task],
        peer_name="our scalar loop",
    )


def rows() -> list[Row]:
    """Return all measurements of evaluations."""
    return [row(task) for task in AIMS]


if __name__ == "__main__":
    print_table("evaluation", rows())
