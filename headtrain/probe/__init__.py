"""Heads that are trained on a whole cache: linear probes, fitted heads, aligned heads.

settings   settings of the training, and the values to try
fit        heads of a grid: by AdamW in a bank, or by L-BFGS one after another
protocol   split, grid, choice, refit, measurement: all steps of `probe`
fit_head   a head for a cache without one
align      a base head, fine-tuned with another loss
"""
