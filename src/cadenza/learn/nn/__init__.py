"""Networks, each built from an explicit `torch.Generator`.

Start at:    `gaussian_actor.GaussianActor` and `value_critic.ValueCritic`.
Promise:     equal generator states give bitwise equal weights; the global generator is untouched.
May import:  `core`.  Must not import: `learn.algorithms`.
"""
