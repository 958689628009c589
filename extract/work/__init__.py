"""The work of an extraction: images in, shards out, in parts.

settings, options  the options, without PyTorch
run                all splits and views of a data set; Ray runs the same parts
split_run          one split: the missing shards
pipeline           decoding, transfer and network, overlapped
recorded           network and transform behind an existing cache
"""
