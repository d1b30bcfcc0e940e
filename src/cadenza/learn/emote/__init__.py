"""The original engine's losses, as callbacks of its `Trainer`, over the functions of the agents.

Start at:    `sac` for the losses and the target of one algorithm, `targets` for what they share;
             `cadenza.learn.algorithms` has the same modules under the names that Emote gave them.
Promise:     names, parameters and defaults of Emote; each loss steps an optimiser of torch.
May import:  every other room of `learn` but `algorithms`.
"""
