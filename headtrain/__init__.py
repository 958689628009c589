"""Features to heads: statistics, solves, initialisations and class-incremental training.

Rooms, from the ground up:

    study, setting    what a run is asked to do, and which settings mean something to it
    losses            values, gradients, and expansions for calibration
    least_squares     class statistics and the head of Eq. 3
    stream            classes, tasks, buffer and batches: what each task looks at
    init              how the rows of new classes start
    bank              heads that learn side by side: updates and evaluations
    closed            closed forms of statistics that rows are added to as they arrive
    record            what is written down, and the folder of a run
    learner           a bank that learns one task after another; closed_learner: a closed form
    experiment        one call of either
    align             the fine-tuning of a base head
    top               the same with blocks of the backbone that learn as well
    export            a run as one model file
    sweep             many runs
"""
