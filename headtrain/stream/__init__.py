"""What a learner sees: data sets, tasks, rows of each task, batches."""
