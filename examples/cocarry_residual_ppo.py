"""Co-carry on top of a law: PPO learns what the law lacks beside partners that do not lead.

python examples/cocarry_residual_ppo.py --seeds 3

The law stays level with its partner and goes gently towards the goal, too gently for followers.
`ResidualActions` adds a learned correction to it, trained with the task's own reward and the option
``training`` (force limit 20 % lower, an episode ends where a limit breaks). The agent that succeeds
most often on validation episodes is kept, and judged beside every stratum and every held-out family
of partners, as is the law alone. ``--steps`` counts environment steps. Needs
`pip install 'cadenza[mujoco]'`.
"""

import sys
import time
from collections import defaultdict

from harness import Outcome, Run, main

import cadenza
from cadenza.benchmark.imitation import BestSuccess, Successes, imitation_batch, success_by_partner
from cadenza.benchmark.scripted_egos import carry
from cadenza.envs.residual import ResidualActions
from cadenza.partners.cocarry import HELD_OUT_EASY, HELD_OUT_HARD

TASK = "cocarry_mj"
FOLLOWER = "cocarry_follower"
STRATA = ("cocarry_leader", "cocarry_shared", FOLLOWER)
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

#: Successes of all seeds, by partner.
total: defaultdict[str, Successes] = defaultdict(lambda: Successes(()))


def train(run: Run) -> Outcome:
    """Train one seed, and judge its best agent and the law beside every kind of partner."""
    began = time.perf_counter()
    envs = imitation_batch(
        TASK, COPIES, expert=None, partners=STRATA, root_seed=run.seed, training=1
    )
    worlds = ResidualActions(envs, carry, share=SHARE)
    agent = cadenza.PPO(worlds, seed=run.seed, **SETTINGS)

    def report(steps: int, won: Successes) -> None:
        run.report(steps, 100.0 * won.count / len(won.won))
        run.say(f"{steps} steps, validation {won}, {time.perf_counter() - began:.0f} s")

    best = BestSuccess(
        agent,
        run.out / "best",
        TASK,
        STRATA,
        every=EVERY,
        episodes=min(run.episodes, VALIDATION),
        policy=worlds.policy(agent.predict),
        report=report,
    )
    agent.learn(run.steps, callbacks=best, progress=False)
    run.say(f"trained in {time.perf_counter() - began:.0f} s, best after {best.best_steps} steps")
    kept = worlds.policy(cadenza.PPO.load(best.file, worlds).predict)
    families = STRATA[2:] if run.smoke else (*STRATA, *HELD_OUT_EASY, *HELD_OUT_HARD)
    judged: dict[str, Successes] = {}
    for name, policy in (("the law", carry), ("corrected", kept)):
        judged = success_by_partner(policy, TASK, families, episodes=run.episodes)
        for family, successes in judged.items():
            total[f"{family}, {name}"] += successes
            run.say(f"{family}, {name}: {successes}")
    returns = [float(won) for won in judged[FOLLOWER].won]
    return Outcome(returns=returns, env_steps=agent.steps, updates=agent.updates)


if __name__ == "__main__":
    main(
        train,
        name="cocarry_residual_ppo",
        steps=600_000,
        smoke_steps=40,
        episodes=50,
        measure="validation episodes that succeed (%)",
    )
    for family, successes in total.items():
        sys.stderr.write(f"all seeds, {family}: {successes}\n")
