"""Stacked learners: the K members of a population as one network, one optimiser, one update.

Start at:    `ppo.StackedPPO`; a rollout is a `rollout.StackedRollout`.
Promise:     a member's bytes depend on its own seed and rollouts alone, whoever it is stacked with,
             on one torch thread.
May import:  `cadenza.learn.agents` and what is below it.
"""
