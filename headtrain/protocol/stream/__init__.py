"""The stream that a learner sees.

source     features and heads, read from caches
scenario   which classes arrive in which task
buffer     the old rows that are kept
task_plan  rows and batches of each task
seeds      the origin of every random number
notes      notes for the user on the data, before training
"""
