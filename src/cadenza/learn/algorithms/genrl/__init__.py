"""GenRL: learn an action space from recorded actions, then let a policy act in it.

Start at:    `vae.VAELoss` (learn the space), `wrappers.PolicyWrapper` (act in it),
             `proxies.MemoryProxyWithEncoder` (store what was done as points of the space).
Promise:     a policy's outputs and the stored latents live in one range.
May import:  `core`, `learn`.
"""
