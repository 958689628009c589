"""Records of runs: a folder with `run.json`, tables and the final head.

task_log  the rows of the tables, collected during a run
tables    columns and types of the tables
info      the fields of `run.json`
format    writing and reading a record
compare   differences of two records
"""
