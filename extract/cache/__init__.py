"""Feature caches: their documents, shards and heads, written and read.

plan, fingerprint  which rows go to which shard; what features depend on
shard, head        HDF5 files of features; the classifier
summary, folder    contents of a complete split; splits and views in a folder
read, features     a cache, opened; features with their labels
verify             all digests of a cache
"""
