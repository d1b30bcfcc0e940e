"""Co-carry from zero: an ego learns to carry a bar beside leaders, by trial and error alone.

python examples/cocarry_sac.py --seeds 6

Soft actor-critic on the track "grip" with the option ``training`` (force limit 20 % lower, an
episode ends where a limit breaks, success truncates) and the reward "proximity". What was learned
may be lost again, so the agent that succeeds most often on validation episodes is kept. It is
judged beside every stratum and every held-out family of partners, most of which it cannot know.
``--steps`` counts environment steps. Needs `pip install 'cadenza[mujoco]'`.
"""

import time
from collections import defaultdict
from pathlib import Path

import torch
import typer

import cadenza
from cadenza.benchmark.imitation import BestSuccess, Successes, imitation_batch, success_by_partner
from cadenza.partners.cocarry import HELD_OUT_EASY, HELD_OUT_HARD

TASK = "cocarry_mj"
LEADER = "cocarry_leader"
STRATA = (LEADER, "cocarry_shared", "cocarry_follower")
SETTINGS = {"hidden_sizes": (128, 128), "learning_rate": 3e-4, "gamma": 0.98, "tau": 0.01}
#: Environments; one update for two steps of one of them. Fewer of them learn less steadily.
COPIES = 4
STEPS_PER_UPDATE = 2
#: Validation: environment steps between judgements, and episodes of each.
EVERY = 2_000
VALIDATION = 50


def train(seed: int, steps: int, folder: Path) -> cadenza.SAC:
    """Train one seed and return its best agent."""
    wall, cpu = time.perf_counter(), time.process_time()
    envs = imitation_batch(
        TASK,
        COPIES,
        expert=None,
        partners=[LEADER],
        root_seed=seed,
        training=1,
        reward="proximity",
    )
    agent = cadenza.SAC(envs, seed=seed, train_every=STEPS_PER_UPDATE, **SETTINGS)

    def report(done: int, won: Successes) -> None:
        spent = time.process_time() - cpu
        print(f"seed {seed}, {done} steps, validation {won}, CPU {spent:.0f} s", flush=True)

    best = BestSuccess(
        agent, folder / "best", TASK, [LEADER], every=EVERY, episodes=VALIDATION, report=report
    )
    agent.learn(steps, callbacks=best)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(f"seed {seed}, {wall:.0f} s ({cpu:.0f} s of CPU), best after {best.best_steps} steps")
    return cadenza.SAC.load(best.file, envs)


def main(
    seed: int = 0,
    seeds: int = 1,
    steps: int = 10_000,
    episodes: int = 100,
    out: Path = Path("runs/examples/cocarry_sac"),
) -> None:
    """Train every seed, and judge its best agent beside every kind of partner."""
    torch.set_num_threads(1)  # networks are small: threads would wait for one another
    total: defaultdict[str, Successes] = defaultdict(lambda: Successes(()))
    families = (*STRATA, *HELD_OUT_EASY, *HELD_OUT_HARD)
    for root in range(seed, seed + seeds):
        agent = train(root, steps, out / f"seed_{root}")
        judged = success_by_partner(agent.predict, TASK, families, episodes=episodes)
        for successes in judged.values():
            total[successes.partner] += successes
            print(f"seed {root}, {successes.partner}: {successes}", flush=True)
    for family, successes in total.items():
        print(f"all seeds, {family}: {successes}")


if __name__ == "__main__":
    typer.run(main)
