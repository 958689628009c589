"""The full-image path: the last blocks of the backbone are trained together with the head.

experiment, training    runs, and the method of their learner; the updates of a task
inputs                  the data and the cache of activations that runs share
network, families       trunk, plastic blocks and head; networks that can be cut
images, activations     images of a run; their activations
methods                 elastic weight consolidation; dark experience replay
checkpoint              the file from which a killed run resumes
"""
