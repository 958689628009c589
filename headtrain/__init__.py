"""Features to heads: statistics, solves, initialisations and class-incremental training.

Storeys, from the ground up; each lists its rooms:

    heads      what follows from features and labels alone: statistics, starts, closed forms
    protocol   class-incremental experiments: settings, stream, training, records, sweeps
    probe      heads that are trained on a whole cache
    top        experiments in which blocks of the backbone are trained, too
    model      a classifier in use: export, and add, replace, rename and remove classes

From two caches to a record: `stream.source` reads features and heads, `runs.train_heads` trains the
runs that are left, `experiment.run_experiment` calls `learner.Learner`, which takes each task
through `methods.GradientHeads` (`train.task_start` makes the new rows, `train.loop` the updates) or
`methods.ClosedHeads`; `record.format` writes.
"""
