"""Heads that are trained next to each other on the same batches.

heads        the bank: weights of many heads in one tensor
losses       cross-entropy, squared error, squentropy, and losses from outside
step         one update of AdamW, or by a function of the user
past         statistics of earlier classes; rows drawn from their means and one covariance;
             penalties that hold a head near its start
loop         all updates of a task, and their rows: stored, streamed, or drawn
evaluate     correct answers and losses, class by class
"""
