"""The stream that a learner sees: data sets, tasks, rows of each task, batches."""
