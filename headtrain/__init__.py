"""Features to heads: statistics, solves, initialisations and class-incremental training.

Rooms, from the ground up:

    setting           a field of a dataclass that is an option, a key in a file and a check at once
    study             what a run is asked to do, and which settings mean something to it
    array, rows, ram  NumPy and CuPy alike; rows of a head; memory for features
    groups            images that repeat each other
    temperature       one factor for the logits of a model in use
    stream            the classes, tasks, buffer, rows and batches of each task
    statistics        class statistics and the head of Eq. 3
    train             heads that learn side by side: losses, updates and evaluations
    start             how the rows of new classes start, and at which scale
    correction        corrections after a task
    closed            closed forms of statistics that rows are added to as they arrive
    events, record    events of a run, its record, and the folder of records
    learner           the loop over the tasks of a stream
    methods           a learner's work in a task: updates by gradients, closed forms
    experiment        one call of them
    probe             how well any linear head can do; heads that are fitted or fine-tuned
    top               the same with blocks of the backbone that learn as well
    runs              the runs of a call: their places, which are left, training, recording
    model             a model in use: exported, classes added, replaced, renamed and removed
    sweep             many runs

From two caches to a record: `stream.source` reads features and heads, `runs.train_heads` trains the
runs that are left, `experiment.run_experiment` calls `learner.Learner`, which takes each task
through `methods.GradientHeads` (`start.task_start` makes the new rows, `train.loop` the updates) or
`methods.ClosedForm`; `record.format` writes.
"""
