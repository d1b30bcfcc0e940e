"""cadenza.learn."""
