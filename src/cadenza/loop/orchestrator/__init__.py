"""Orchestrator: what to do next, and whether a policy is better."""
