"""Dataset aggregation on the co-carry task: an ego that leads, shares and follows.

python examples/cocarry_dagger.py --seeds 3

The reference ego feels whether its partner leads and takes the other role. A perceptron imitates it
at every state that it visits itself, beside leaders, sharing partners and followers in equal parts,
and is judged beside each kind on episodes of its own. ``--steps`` counts environment steps.
Needs `pip install 'cadenza[mujoco]'`.
"""

import sys

from harness import Outcome, Run, main

import cadenza
from cadenza.benchmark.imitation import imitation_batch, success_by_partner
from cadenza.learn import Callback

TASK = "cocarry_mj"
EXPERT = "cocarry_reference"
ROLES = ("cocarry_leader", "cocarry_shared", "cocarry_follower")


class Curve(Callback):
    """Reports the loss after every round."""

    def __init__(self, run: Run, agent: cadenza.DAgger) -> None:
        super().__init__()
        self._run, self._agent = run, agent

    def end_batch(self) -> None:
        """Add a point after the last update of a round."""
        if self._agent.updates % self._agent.config.updates == 0:
            self._run.report(self._agent.steps, self._agent.scalar_logs["training/loss"])


def train(run: Run) -> Outcome:
    """Train one seed and judge it beside every kind of partner."""
    small = {"round_length": 10, "updates": 5} if run.smoke else {}
    envs = imitation_batch(
        TASK, 3 if run.smoke else 25, expert=EXPERT, partners=ROLES, root_seed=run.seed
    )
    agent = cadenza.DAgger(envs, seed=run.seed, **small)
    agent.learn(run.steps, callbacks=[Curve(run, agent)], progress=False)
    agent.save(run.out / "agent")
    roles = ROLES[: run.episodes]
    judged = success_by_partner(agent.predict, TASK, roles, episodes=run.episodes // len(roles))
    for role, successes in judged.items():
        sys.stderr.write(f"seed {run.seed}, {role}: {successes}\n")
    returns = [float(won) for successes in judged.values() for won in successes.won]
    return Outcome(returns=returns, env_steps=agent.steps, updates=agent.updates)


if __name__ == "__main__":
    main(
        train,
        name="cocarry_dagger",
        steps=25_000,
        smoke_steps=60,
        episodes=150,
        measure="squared error of imitated actions",
    )
