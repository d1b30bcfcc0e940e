"""cadenza.cli."""
