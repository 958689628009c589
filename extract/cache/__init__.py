"""Write and read feature caches.

plan, fingerprint  which shard contains which rows; everything that features depend on
shard, head        HDF5 files of features; the pretrained classifier
summary, folder    contents of a complete split; splits and views in a folder
read, features     open a cache; features with their labels
verify             check all digests of a cache
"""
