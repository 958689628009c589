"""Many runs from one description: a grid or a search, compiled into banks, each run recorded.

    fields      what can be varied: the settings of a study that hold one value
    grid        values of fields, from words of the command line or a TOML file
    run         the runs of a grid: a study for every combination
    plan        runs under unique names, in banks that fit into memory
    folder      what a sweep's folder holds: recorded runs, and the data they were made with
    runner      trains the banks that are left and records their runs
    cluster     trains the banks on a Ray cluster
    held_out    training rows kept aside to choose settings by
    search      settings proposed by Optuna, as many trials at a time as a bank holds

What is recorded is not trained again: a sweep that was killed continues where it was.
"""
