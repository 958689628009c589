"""Run extractions: compute the shards of a cache from images.

settings, options  the options of an extraction, without PyTorch
run                extract all splits and views of a data set, here or on a Ray cluster
split_run          extract one split: find and compute its missing shards
pipeline           overlap decoding, transfer and the network
recorded           rebuild the network and the transform of an existing cache
"""
