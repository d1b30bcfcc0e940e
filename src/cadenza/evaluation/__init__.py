"""cadenza.evaluation."""
