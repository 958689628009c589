"""Features to heads: statistics, solves, initialisations and class-incremental training.

Rooms, from the ground up:

    setting           a field of a dataclass that is an option, a key in a file and a check at once
    study             what a run is asked to do, and which settings mean something to it
    losses            values, gradients, and expansions for calibration
    least_squares     class statistics and the head of Eq. 3
    stream            classes, tasks, buffer and batches: what each task looks at
    init              how the rows of new classes start
    bank              heads that learn side by side: updates and evaluations
    closed            closed forms of statistics that rows are added to as they arrive
    record            what is written down, and the folder of a run
    learner           the loop over the tasks of a stream; methods: heads by gradients, closed forms
    experiment        one call of them
    align, probe      the fine-tuning of a base head; how well any linear head can do
    top               the same with blocks of the backbone that learn as well
    runs              the runs of a call: their places, which are left, training, recording
    export            a run as one model file
    deployed          a model in use: classes are added, replaced, renamed and removed
    sweep             many runs
"""
