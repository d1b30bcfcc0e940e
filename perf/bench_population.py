"""An ego in training beside a population: partners in one forward pass, beside row by row.

Task:     `crossing` (numbers) and `foraging` (choices): iterations of `cadenza.PPO`, 160
          environments, rollouts of 64 steps, epochs and minibatches of `cadenza zoo train`; 20
          members of a zoo, one drawn per episode.
Peer:     the same training with a partner of its own behind every environment, asked one by one.
Protocol: steps per processor second, one torch thread, by turns in one process; medians. Processor
          time, as other processes take the wall's.

Usage:  python -m perf.bench_population [--repeats 3] [--envs 160]
"""

import argparse
import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np

import cadenza
from cadenza.benchmark.populations import population
from cadenza.benchmark.zoo.build import train_zoo
from cadenza.benchmark.zoo.config import ZooConfig
from cadenza.core.device import single_torch_thread
from cadenza.partners.registry import isolated_registry, load_partner, register_partner
from cadenza.partners.spec import PartnerSpec
from cadenza.partners.zoo_member import ZOO_MEMBER
from perf.bench_zoo import processor_seconds
from perf.timing import Row, print_table

REPEATS = 3
ENVIRONMENTS = 160
MEMBERS = 20
#: A repeat is one rollout and its update.
SETTINGS = {"rollout_length": 64, "epochs": 8, "batch_size": 1024, "learning_rate": 1e-3}
#: Least ratio to partners asked one by one that we promise.
AIM = 3.0
#: Name of the peer's class of partners.
ONE_BY_ONE = "one_by_one"


class OneByOne:
    """A member of a zoo that knows one environment only; copies share the loaded policy."""

    loaded: ClassVar[dict[str, Any]] = {}

    def __init__(self, spec: PartnerSpec) -> None:
        self.spec = spec
        key = spec.content_id
        if key not in self.loaded:
            member = PartnerSpec(ZOO_MEMBER, 0, weights_uri=spec.weights_uri, extra=spec.extra)
            self.loaded[key] = load_partner(member)
        self._member = self.loaded[key]

    def reset(self, *, seed: int | None = None) -> None:
        """Check the weights and begin an episode."""
        self._member.reset(seed=seed)

    def act(self, obs: Mapping[str, Any], *, deterministic: bool = True) -> np.ndarray:
        """Return the member's action, (A,)."""
        return self._member.act(obs, deterministic=deterministic)


def bench(task: str, folder: Path, environments: int, repeats: int) -> Row:
    """Trainings beside both; the first pair warms up."""
    zoo = folder / task
    untrained = ZooConfig(
        method="fcp", task=task, population=7, steps=6_400, snapshots=2, episodes=2
    )
    train_zoo(untrained, out=zoo, workers=1)
    members = [p.model_dump() for p in population(task, zoo).partners[:MEMBERS]]
    plain = [{**m, "class_name": ONE_BY_ONE, "weights_sha256": None} for m in members]
    agents = [
        cadenza.PPO(
            gymnasium.make_vec("cadenza/Ego-v1", environments, task=task, partners=partners),
            seed=0,
            **SETTINGS,
        )
        for partners in (members, plain)
    ]
    steps = environments * SETTINGS["rollout_length"]
    spent: list[list[float]] = [[], []]
    for _ in range(repeats + 1):
        for agent, seconds in zip(agents, spent, strict=True):
            seconds.append(processor_seconds(lambda a=agent: a.learn(steps, progress=False)))
    ours, peer = (steps / statistics.median(seconds[1:]) for seconds in spent)
    return Row(
        f"{task}, {MEMBERS} partners, {environments} environments",
        ours=ours,
        peer=peer,
        unit="steps/s of processor",
        aim=AIM,
        better="higher",
        peer_name="partners one by one",
    )


def rows(repeats: int = REPEATS, environments: int = ENVIRONMENTS) -> list[Row]:
    """Return every measurement of this file."""
    with single_torch_thread(), isolated_registry(), tempfile.TemporaryDirectory() as folder:
        register_partner(ONE_BY_ONE)(OneByOne)
        return [bench(t, Path(folder), environments, repeats) for t in ("crossing", "foraging")]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--envs", type=int, default=ENVIRONMENTS)
    arguments = parser.parse_args()
    print_table("Egos beside populations", rows(arguments.repeats, arguments.envs))


if __name__ == "__main__":
    main()
