"""cadenza.envs."""
