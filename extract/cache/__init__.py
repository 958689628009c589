"""Write and read feature caches.

plan, fingerprint  which shard contains which rows, folders; everything that features depend on
groups             images that repeat each other
shard, head        HDF5 files of features; the pretrained classifier
summary            contents of a complete split
read, features     open a cache; features with their labels
verify             check all digests of a cache
"""
