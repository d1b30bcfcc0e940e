"""Learning: networks, advantage estimates and update rules that the trainers are made of.

Start at:    `algorithms.happo` (one minibatch update) and `algorithms.ppo_epochs` (a whole update).
Promise:     equal inputs and generators give equal bits on the CPU; no global random state is read.
May import:  `core`.  Must not import: `safety`, `envs`, `aht` or anything above them.
Adding one:  one module under `algorithms`, its paper and score in the folder's README.
"""
