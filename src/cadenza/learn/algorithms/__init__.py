"""Update rules as functions of networks, optimisers and batches.

Start at:    one file per algorithm; those that learn from rollouts are in `learn.agents`.
Promise:     no file, no log, no hidden random state: everything drawn comes from an argument.
May import:  `core`, `learn.nn`, `learn.advantages`.
"""
