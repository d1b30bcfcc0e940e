"""Behaviour cloning on the co-carry task: an ego from 50 recorded episodes.

python examples/cocarry_bc.py --seeds 3

The reference ego, which feels whether its partner leads and takes the other role, plays 50 episodes
beside leaders, sharing partners and followers, pushed off its way at every second step, so that the
files show how to come back. They are NPZ; a perceptron that is cloned from them alone is judged
beside each kind of partner on episodes of its own. ``--steps`` counts updates.
Needs `pip install 'cadenza[mujoco]'`.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray

import cadenza
from cadenza.benchmark.imitation import Successes, imitation_batch, success_by_partner
from cadenza.learn.agents.judging import Evaluation

TASK = "cocarry_mj"
#: Deviation of the pushes, unit of the action, in [-1, 1].
NOISE = 0.1
ROLES = ("cocarry_leader", "cocarry_shared", "cocarry_follower")


def record(folder: Path, episodes: int, root_seed: int) -> None:
    """Let the reference play ``episodes`` at once and write a file for each."""
    envs = imitation_batch(
        TASK, episodes, expert="cocarry_reference", partners=ROLES, root_seed=root_seed
    )
    rng, low, high = np.random.default_rng(root_seed), envs.action_space.low, envs.action_space.high
    states, _ = envs.reset(seed=root_seed)
    running = np.ones(episodes, dtype=bool)
    rows: list[list[tuple[NDArray[Any], NDArray[Any], float]]] = [[] for _ in range(episodes)]
    folder.mkdir(parents=True)
    while running.any():
        actions = envs.expert_action()
        pushes = NOISE * rng.standard_normal(actions.shape) * rng.integers(2, size=(episodes, 1))
        executed = np.clip(actions + pushes, low, high).astype(np.float32)
        following, rewards, terminated, truncated, info = envs.step(executed)
        for row in np.flatnonzero(running):
            rows[row].append((states[row].copy(), actions[row], rewards[row]))
            if terminated[row] or truncated[row]:
                running[row] = False
                observations, done, earned = map(np.array, zip(*rows[row], strict=True))
                np.savez(
                    folder / f"episode_{row}.npz",
                    observation=observations,
                    action=done,
                    reward=earned,
                    terminated=terminated[row],
                    success=info["success"][row],
                )
        states = following
    envs.close()


def main(
    seed: int = 0,
    seeds: int = 1,
    steps: int = 5_000,
    demonstrations: int = 50,
    episodes: int = 50,
    out: Path = Path("runs/examples/cocarry_bc"),
) -> None:
    """Record and clone for every seed, and judge the clone beside every kind of partner."""
    torch.set_num_threads(1)  # networks are small: threads would wait for one another
    rates: list[float] = []
    for root in range(seed, seed + seeds):
        folder = out / f"seed_{root}" / "demonstrations"
        record(folder, demonstrations, root)
        shown = imitation_batch(TASK, 1, expert=None, partners=ROLES)
        agent = cadenza.BC(shown, demonstrations=folder, seed=root).learn(steps)
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
