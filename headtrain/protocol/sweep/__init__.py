"""Many runs from one grid, compiled into banks, each run recorded.

    grid        values of fields, from words of the command line or a TOML file
    plan        runs under unique names, in banks that fit into memory; their training and records

Recorded runs are not trained again: a killed sweep resumes.
"""
