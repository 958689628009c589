"""Frozen networks: their arguments, their weights and what images go through."""
