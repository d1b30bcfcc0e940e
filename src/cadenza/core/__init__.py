"""cadenza.core."""
