"""Features to heads: statistics, solves, initialisations and class-incremental training.

Rooms, from the ground up:

    setting           a field of a dataclass that is an option, a key in a file and a check at once
    study             the settings of a run, and which of them have an effect
    array, rows, ram  NumPy and CuPy alike; rows of a head; memory for features
    groups            images that repeat each other
    temperature       one factor for the logits of a model in use
    stream            the classes, tasks, buffer, rows and batches of each task
    statistics        class statistics and the head of Eq. 3
    train             heads that are trained together: losses, updates and evaluations
    start             how the rows of new classes start, and at which scale
    correction        corrections after a task
    closed            closed forms of statistics, to which arriving rows are added
    events, record    events of a run, its record, and the folder of records
    learner           the loop over the tasks of a stream
    methods           a learner's work in a task: updates by gradients, closed forms
    experiment        one experiment: from data and settings to records
    probe             linear probes; heads that are fitted or fine-tuned
    top               experiments in which blocks of the backbone are trained, too
    runs              the runs of a call: their folders, which are left, training, recording
    model             models: export, and add, replace, rename and remove classes
    sweep             many runs

From two caches to a record: `stream.source` reads features and heads, `runs.train_heads` trains the
runs that are left, `experiment.run_experiment` calls `learner.Learner`, which takes each task
through `methods.GradientHeads` (`start.task_start` makes the new rows, `train.loop` the updates) or
`methods.ClosedForm`; `record.format` writes.
"""
