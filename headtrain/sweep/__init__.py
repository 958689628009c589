"""Many runs from one description: a grid or a search, compiled into banks, each run recorded.

    settings    what a search is asked for: trials, and what they are judged by
    grid        values of fields, from words of the command line or a TOML file
    plan        runs under unique names, in banks that fit into memory, and their training
    folder      what a sweep's folder holds: recorded runs, and the data they were made with
    on_ray      trains the banks on a Ray cluster
    search      settings proposed by Optuna, as many trials at a time as a bank holds

What is recorded is not trained again: a sweep that was killed continues where it was.
"""
