"""The linear probe: how well a linear head on frozen features can tell classes apart.

settings      how its heads are trained, and what is tried
protocol      split, grid, choice, refit, measurement: `probe` does all of it
points        heads of a grid: by AdamW in a bank, or by L-BFGS one after the other
lbfgs         multinomial logistic regression on rows of any number
standardise   mean 0 and deviation 1, and heads that do without
accuracy      top-1, top-5 and the mean over classes
result        what comes out
"""
