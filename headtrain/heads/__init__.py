"""Linear heads, from features and labels alone: no files, no study, no terminal.

array, linear           NumPy, CuPy and torch under one interface; the rows of a linear head
groups, repeats         rows that repeat each other, and how they are found
losses, temperature     training losses; calibrated probabilities and rejection
seeds                   the origin of every random number
statistics              class statistics, least squares, the choice of lambda
start                   rows of new classes
closed                  closed forms that see each row once
"""
