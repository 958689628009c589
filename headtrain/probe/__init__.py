"""Heads that are made from a whole cache: fitted heads (linear probes), aligned heads.

settings   how heads are fitted, and the values to try
fit        heads of a grid: by AdamW in a bank, or by L-BFGS one after another
protocol   split, grid, choice, refit or solution, measurement: all steps of `head fit`
align      a base head, fine-tuned with another loss
"""
