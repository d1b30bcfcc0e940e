"""Update rules as functions of networks, optimisers and batches.

Start at:    `happo` (one minibatch), `ppo_epochs` (all epochs over one rollout).
Promise:     no file, no log, no hidden random state: everything drawn comes from an argument.
May import:  `core`, `learn.nn`, `learn.advantages`.
"""
