"""cadenza.partners."""
