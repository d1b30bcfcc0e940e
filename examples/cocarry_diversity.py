"""Does diversity pay? One expert, one budget, four sets of partners to learn beside.

python examples/cocarry_diversity.py

Each ego imitates the reference ego of the co-carry task by dataset aggregation, beside another set
of partners, and is then judged beside three held-out partners that ask it to take the other role
(`HELD_OUT_HARD`), all egos on the same episodes. The table says how many each solves, and by how
much the first set is better: the paired difference with its exact 95 % interval.
Needs `pip install 'cadenza[mujoco]'`.
"""

from typing import Any

import typer

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


def main(seed: int = 0, steps: int = 15_000, episodes: int = 100) -> None:
    """Train and judge every set; ``steps`` of each ego, ``episodes`` beside each partner."""
    print(f"{'learned beside':28s} {', '.join(HELD_OUT_HARD)}, all; first set minus this one")
    best: Successes | None = None
    for name, partners in SETS.items():
        envs = imitation_batch(TASK, 25, expert=EXPERT, partners=partners, root_seed=seed)
        agent = cadenza.DAgger(envs, seed=seed).learn(steps, progress=False)
        envs.close()
        judged = success_by_partner(agent.predict, TASK, HELD_OUT_HARD, episodes=episodes)
        total = line(name, judged, best)
        best = best or total
    expert = success_by_partner(EXPERT, TASK, HELD_OUT_HARD, episodes=episodes)
    line("the expert itself", expert, best)


if __name__ == "__main__":
    typer.run(main)
