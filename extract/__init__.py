"""Images to features: manifests, decoding, frozen backbones and the feature cache."""
