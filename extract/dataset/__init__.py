"""Data sets on the disk, their manifests, and the content of images."""
