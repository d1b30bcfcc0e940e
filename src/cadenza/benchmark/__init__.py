"""cadenza.benchmark."""
