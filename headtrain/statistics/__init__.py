"""Moments of features by class, and the least-square heads that follow from them."""
