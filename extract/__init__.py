"""Images to features: manifests, decoding, frozen backbones and the feature cache.

From a folder to a cache: `dataset.scan` lists the images, `network.backbone` loads the network,
`work.run` plans, `work.split_run` finds the shards that are missing, `work.pipeline` decodes and
computes, and `cache` holds the formats: `plan`, `shard`, `head`, `summary`; `cache.read` opens it.
"""
