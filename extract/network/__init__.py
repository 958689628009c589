"""Frozen networks: their arguments, their weights, and the transform of their images."""
