"""The work of an extraction: images in, shards out, in parts."""
