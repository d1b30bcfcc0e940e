"""Agents: one object per algorithm, with learn, predict, evaluate, save, load and export_onnx.

Start at:    `agent` for what all of them share; ``cadenza.SAC("Pendulum-v1").learn(20_000)``.
Promise:     equal seeds give equal bits on the CPU; a saved and loaded agent continues bit for bit.
May import:  `core` and every other room of `learn`.
Adding one:  one file with its settings, losses and learner; its paper and score in the README.
"""
