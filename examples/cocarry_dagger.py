"""Dataset aggregation on the co-carry task: an ego that leads, shares and follows.

python examples/cocarry_dagger.py --seeds 3

The reference ego feels whether its partner leads and takes the other role. A perceptron imitates it
at every state that it visits itself, beside leaders, sharing partners and followers in equal parts,
and is judged beside each kind on episodes of its own. ``--steps`` counts environment steps.
Needs `pip install 'cadenza[mujoco]'`.
"""

from pathlib import Path

import torch
import typer

import cadenza
from cadenza.benchmark.imitation import Successes, imitation_batch, success_by_partner
from cadenza.learn.agents.judging import Evaluation

TASK = "cocarry_mj"
ROLES = ("cocarry_leader", "cocarry_shared", "cocarry_follower")


def main(
    seed: int = 0,
    seeds: int = 1,
    steps: int = 25_000,
    episodes: int = 50,
    out: Path = Path("runs/examples/cocarry_dagger"),
) -> None:
    """Train every seed and judge it beside every kind of partner."""
    torch.set_num_threads(1)  # networks are small: threads would wait for one another
    rates: list[float] = []
    for root in range(seed, seed + seeds):
        envs = imitation_batch(TASK, 25, expert="cocarry_reference", partners=ROLES, root_seed=root)
        agent = cadenza.DAgger(envs, seed=root).learn(steps)
        agent.save(out / f"seed_{root}" / "agent")
        judged = success_by_partner(agent.predict, TASK, ROLES, episodes=episodes)
        for successes in judged.values():
            print(f"seed {root}, {successes.partner}: {successes}", flush=True)
        all_roles = sum(judged.values(), Successes(()))
        print(f"seed {root}: {all_roles}", flush=True)
        rates.append(100.0 * all_roles.count / len(all_roles.won))
    if seeds > 1:
        print(f"success over seeds, %: {Evaluation.of(rates, [])}")


if __name__ == "__main__":
    typer.run(main)
