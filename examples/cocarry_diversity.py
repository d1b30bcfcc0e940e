"""Does diversity pay? One expert, one budget, four sets of partners to learn beside.

python examples/cocarry_diversity.py

Each ego imitates the reference ego of the co-carry task by dataset aggregation, beside another set
of partners, and is then judged beside three held-out partners that ask it to take the other role
(`HELD_OUT_HARD`), all egos on the same episodes. The table says how many each solves, and by how
much the first set is better: the paired difference with its exact 95 % interval.
Needs `pip install 'cadenza[mujoco]'`.
"""

import argparse
from typing import Any

import cadenza
from cadenza.benchmark.imitation import Successes, imitation_batch, success_by_partner
from cadenza.partners.cocarry import HELD_OUT_HARD

TASK = "cocarry_mj"
EXPERT = "cocarry_reference"
STRAIGHT = {"class_name": "cocarry_leader", "extra": {"paths": "1"}}
SETS: dict[str, list[Any]] = {
    "leaders, sharers, followers": ["cocarry_leader", "cocarry_shared", "cocarry_follower"],
    "straight leaders": [STRAIGHT],
    "leaders": ["cocarry_leader"],
    "one nominal partner": ["cocarry_nominal"],
}


def solved(policy: Any, episodes: int) -> dict[str, Successes]:
    """Return what an ego solves beside each held-out partner."""
    return success_by_partner(policy, TASK, HELD_OUT_HARD, episodes=episodes)


def line(name: str, judged: dict[str, Successes], best: Successes | None = None) -> Successes:
    """Print one row of the table; return the successes beside all partners."""
    counts = [f"{each.count:4d}" for each in judged.values()]
    total = sum(judged.values(), Successes(()))
    told = ""
    if best is not None:
        difference, low, high = best.minus(total)
        told = f"   {difference:.2f} [{low:.2f}, {high:.2f}]"
    print(f"{name:28s} {' '.join(counts)}   {total}{told}", flush=True)
    return total


def main() -> None:
    """Train and judge every set."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=15_000, help="environment steps of each ego")
    parser.add_argument("--episodes", type=int, default=100, help="beside each held-out partner")
    parser.add_argument("--smoke", action="store_true", help="only show that it runs")
    options = parser.parse_args()
    small = {"round_length": 10, "updates": 5} if options.smoke else {}
    steps, episodes = (60, 1) if options.smoke else (options.steps, options.episodes)
    print(f"{'learned beside':28s} {', '.join(HELD_OUT_HARD)}, all; first set minus this one")
    best: Successes | None = None
    for name, partners in SETS.items():
        envs = imitation_batch(TASK, 25, expert=EXPERT, partners=partners, root_seed=options.seed)
        agent = cadenza.DAgger(envs, seed=options.seed, **small).learn(steps, progress=False)
        envs.close()
        total = line(name, solved(agent.predict, episodes), best)
        best = best or total
    line("the expert itself", solved(EXPERT, episodes), best)


if __name__ == "__main__":
    main()
