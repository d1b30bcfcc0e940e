"""cadenza.aht."""
