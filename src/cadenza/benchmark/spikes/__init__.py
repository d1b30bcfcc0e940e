"""Spikes: does a factor of heterogeneity cost cooperation? Staged, registered, gated.

Start at:    `runs.run_spike` (play one axis) and `gate.read_spikes` (judge what was played).
Promise:     a rehearsal (dry run, stage 1a) reaches neither a table nor a gate.
Stages:      0 the rig fits together, 1a it plays with an ego that never acts, 1b AS and OM, 2 CR
             and CM, 3 PF and SA.
Adding one:  an adapter in `cadenza.benchmark.spike_axes`.
"""
