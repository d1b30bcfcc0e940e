"""Co-carry from zero: an ego learns to carry a bar beside leaders, by trial and error alone.

python examples/cocarry_sac.py --seeds 3

Soft actor-critic on the track "grip" with the option ``training`` (force limit 20 % lower, an
episode ends where a limit breaks, success truncates) and the reward "proximity". What was learned
may be lost again, so the agent that succeeds most often on validation episodes is kept. It is
judged beside every stratum and every held-out family of partners, most of which it cannot know.
``--steps`` counts environment steps. Needs `pip install 'cadenza[mujoco]'`.
"""

import sys
import time
from collections import defaultdict

from harness import Outcome, Run, main

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

#: Successes of all seeds, by partner.
total: defaultdict[str, Successes] = defaultdict(lambda: Successes(()))


def train(run: Run) -> Outcome:
    """Train one seed, and judge its best agent beside every kind of partner."""
    clocks = time.perf_counter(), time.process_time()
    envs = imitation_batch(
        TASK,
        COPIES,
        expert=None,
        partners=[LEADER],
        root_seed=run.seed,
        training=1,
        reward="proximity",
    )
    small = {"warmup_steps": 20} if run.smoke else {}
    agent = cadenza.SAC(envs, seed=run.seed, train_every=STEPS_PER_UPDATE, **SETTINGS, **small)

    def report(steps: int, won: Successes) -> None:
        run.report(steps, 100.0 * won.count / len(won.won))
        run.say(f"{steps} steps, validation {won}, CPU {time.process_time() - clocks[1]:.0f} s")

    best = BestSuccess(
        agent,
        run.out / "best",
        TASK,
        [LEADER],
        every=EVERY,
        episodes=min(run.episodes, VALIDATION),
        report=report,
    )
    agent.learn(run.steps, callbacks=best, progress=False)
    wall, cpu = time.perf_counter() - clocks[0], time.process_time() - clocks[1]
    run.say(f"trained in {wall:.0f} s ({cpu:.0f} s of CPU), best after {best.best_steps} steps")
    kept = cadenza.SAC.load(best.file, envs)
    families = STRATA[:1] if run.smoke else (*STRATA, *HELD_OUT_EASY, *HELD_OUT_HARD)
    judged = success_by_partner(kept.predict, TASK, families, episodes=run.episodes)
    for family, successes in judged.items():
        total[family] += successes
        run.say(f"{family}: {successes}")
    returns = [float(won) for won in judged[LEADER].won]
    return Outcome(returns=returns, env_steps=agent.steps, updates=agent.updates)


if __name__ == "__main__":
    main(
        train,
        name="cocarry_sac",
        steps=10_000,
        smoke_steps=40,
        episodes=100,
        measure="validation episodes that succeed (%)",
    )
    for family, successes in total.items():
        sys.stderr.write(f"all seeds, {family}: {successes}\n")
