"""How the rows of new classes start.

new_rows         rows as computed: each function looks at `NewClasses` and returns `Rows`
calibration_set  the rows by whose loss they are judged, with the logits that stay fixed
left_out         the logits that new rows give to rows that they were computed without
calibrate        a factor and a shift, or all of the rows, by the loss
scale            how far: by norms, by the loss, or as learnt from single images of old classes
initialise       all of it for one head, and the ridge by the loss
task_start       for the heads of a bank, initialised or solved as a whole
"""
