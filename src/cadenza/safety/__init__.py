"""cadenza.safety."""
