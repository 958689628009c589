"""A classifier in use: classes are added, replaced, renamed and removed.

settings      how classes are added, and what is remembered of them
model         the network, the names of its classes, and what it remembers
edit          classes that are picked, renamed or removed
listener      who hears of the work
write         a model folder or file with other classes
images        features of a folder of images, and those that are kept aside
old_rows, pseudo_features, head_memory
              what stands for images of old classes
add           rows of added classes: one task of an experiment
add_images    from a folder of images to the written model
remember      statistics and held-out features of the classes
"""
