"""The full-image path: the last blocks of the backbone are trained together with the head.

experiment, inputs      one run; the data that the runs of one call share
blocks                  the method of the learner; training does the updates of a task
network, families       trunk, plastic blocks and head; networks that can be cut; lora
images, activations     images of a run; their activations, kept in trunk_cache
ewc, derpp              elastic weight consolidation; dark experience replay
evaluate, checkpoint    measurements; the file from which a killed run resumes
"""
