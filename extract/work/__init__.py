"""Run extractions: compute the shards of a cache from images, or import them.

options            options, without PyTorch
run                all splits and views of a data set, here or on a Ray cluster
split_run          the missing shards of one split
pipeline           overlapped decoding, transfer and network
import_features    features of other programs
recorded           network and transform of an existing cache
"""
