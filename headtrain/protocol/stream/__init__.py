"""The stream that a learner sees.

source     features and heads, read from caches
scenario   which classes arrive in which task; notes on the data, before training
buffer     the old rows that are kept; rows in memory or on disk
task_plan  rows and batches of each task
"""
