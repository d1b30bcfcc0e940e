"""Co-carry on top of a law: PPO learns what the law lacks beside partners that do not lead.

python examples/cocarry_residual_ppo.py --seeds 3

The law stays level with its partner and goes gently towards the goal, too gently for followers.
`ResidualActions` adds a learned correction to it, trained with the task's own reward and the option
``training`` (force limit 20 % lower, an episode ends where a limit breaks). The agent that succeeds
most often on validation episodes is kept, and judged beside every stratum and every held-out family
of partners, as is the law alone. ``--steps`` counts environment steps. Needs
`pip install 'cadenza[mujoco]'`.
"""

import time
from collections import defaultdict
from pathlib import Path

import torch
import typer

import cadenza
from cadenza.benchmark.imitation import BestSuccess, Successes, imitation_batch, success_by_partner
from cadenza.benchmark.scripted_egos import carry
from cadenza.envs.residual import Law, ResidualActions
from cadenza.partners.cocarry import HELD_OUT_EASY, HELD_OUT_HARD

TASK = "cocarry_mj"
STRATA = ("cocarry_leader", "cocarry_shared", "cocarry_follower")
#: Largest correction, in actions.
SHARE = 0.5
SETTINGS = {
    "rollout_length": 128,
    "batch_size": 512,
    "epochs": 6,
    "learning_rate": 5e-4,
    "initial_log_std": -1.0,
    "normalize_observations": True,
    "hidden_sizes": (128, 128),
}
COPIES = 32
#: Validation: environment steps between judgements, and episodes of each beside every stratum.
EVERY = 16 * COPIES * 128
VALIDATION = 25


def train(seed: int, steps: int, folder: Path) -> Law:
    """Train one seed and return the law with its best correction."""
    began = time.perf_counter()
    envs = imitation_batch(TASK, COPIES, expert=None, partners=STRATA, root_seed=seed, training=1)
    worlds = ResidualActions(envs, carry, share=SHARE)
    agent = cadenza.PPO(worlds, seed=seed, **SETTINGS)

    def report(done: int, won: Successes) -> None:
        spent = time.perf_counter() - began
        print(f"seed {seed}, {done} steps, validation {won}, {spent:.0f} s", flush=True)

    best = BestSuccess(
        agent,
        folder / "best",
        TASK,
        STRATA,
        every=EVERY,
        episodes=VALIDATION,
        policy=worlds.policy(agent.predict),
        report=report,
    )
    agent.learn(steps, callbacks=best)
    spent = time.perf_counter() - began
    print(f"seed {seed}, {spent:.0f} s, best after {best.best_steps} steps", flush=True)
    return worlds.policy(cadenza.PPO.load(best.file, worlds).predict)


def main(
    seed: int = 0,
    seeds: int = 1,
    steps: int = 600_000,
    episodes: int = 50,
    out: Path = Path("runs/examples/cocarry_residual_ppo"),
) -> None:
    """Train every seed, and judge its best agent and the law beside every kind of partner."""
    torch.set_num_threads(1)  # networks are small: threads would wait for one another
    total: defaultdict[str, Successes] = defaultdict(lambda: Successes(()))
    families = (*STRATA, *HELD_OUT_EASY, *HELD_OUT_HARD)
    for root in range(seed, seed + seeds):
        policies = {"the law": carry, "corrected": train(root, steps, out / f"seed_{root}")}
        for name, policy in policies.items():
            judged = success_by_partner(policy, TASK, families, episodes=episodes)
            for successes in judged.values():
                kind = f"{successes.partner}, {name}"
                total[kind] += successes
                print(f"seed {root}, {kind}: {successes}", flush=True)
    for family, successes in total.items():
        print(f"all seeds, {family}: {successes}")


if __name__ == "__main__":
    typer.run(main)
