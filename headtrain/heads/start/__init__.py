"""Initialise the rows of new classes.

new_rows         rows before scaling: each function computes `Rows` from `NewClasses`
calibration_set  the data on which the loss of new rows is measured, with their fixed logits, and
                 leave-one-out logits: each image's logits from rows computed without it
scale            what a start returns: rows, their scale, and what decides their shift
calibrate        scale and lambda by the loss on left-out images; rows of the least loss
initialise       all steps for one head
task_start       the heads of a bank: new rows initialised, or whole heads solved
"""
