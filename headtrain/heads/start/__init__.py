"""Initialise the rows of new classes.

settings             how the rows start
new_rows             rows before scaling: each function computes `Rows` from `NewClasses`
calibration_set      the data on which the loss of new rows is measured, with their fixed logits
left_out             logits of new rows for images that the rows were computed without
scale                what a start returns: rows, their scale, and what decides their shift
calibrate            scale by the loss on left-out images, or by norms
lambda_choice        lambda of least-square rows by the loss
beside_guesses       the same next to old rows that were drawn from a guess
fit                  rows of the least loss
discriminant         shrunken discriminants, the default of `add`
judges               rows that judge them, and their losses
discriminant_choice  discriminants that are chosen, refined and balanced
initialise           all steps for one head
"""
