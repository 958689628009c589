"""Heads that are trained on a whole cache: linear probes, fitted heads, aligned heads.

settings   how they are trained, and the values to try
fit        heads of a grid: by AdamW in a bank, or by L-BFGS one after the other
protocol   split, grid, choice, refit, measurement: `probe` does all of it
fit_head   the head of a cache that came without one
align      a base head, trained on with another loss
"""
