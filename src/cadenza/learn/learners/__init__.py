"""Off-policy algorithms put together for flat observations and box actions.

Start at:    `replay_learner.ReplayLearner`, what a loop needs of one.
Promise:     equal seeds and data give equal bits on the CPU; the state dict is complete.
May import:  `core`, `learn`.  Must not import: `safety`, `envs`, `aht`.
Adding one:  one module; name it in `cadenza.aht.ego_replay` to make it an ego.
"""
