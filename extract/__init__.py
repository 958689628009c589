"""Images to features: manifests, decoding, frozen backbones and the feature cache.

From a folder of images to a cache: `dataset.scan` lists the images, `network.backbone` loads the
network, `work.run` plans, `work.split_run` finds missing shards, and `work.pipeline` decodes and
computes. `cache` contains the file formats (`plan`, `shard`, `head`, `summary`); `cache.read` opens
a cache.
"""
