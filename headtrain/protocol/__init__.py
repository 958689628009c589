"""Class-incremental experiments on features: which classes arrive when, and what is trained.

study, stream           settings of a run; the data of its tasks
train                   training of a bank of heads
methods, learner        what a method does in a task; one stream from start to end
events                  what happens in a run
experiment, runs        runs of one stream; runs of one call, recorded once
record, sweep           records of runs; grids of settings
"""
