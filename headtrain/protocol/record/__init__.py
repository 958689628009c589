"""Records of runs: a folder with `run.json`, tables and the final head.

task_log  the rows of the tables, collected during a run
info      the fields of `run.json`
format    columns and types of the tables; writing, reading and comparing records
"""
