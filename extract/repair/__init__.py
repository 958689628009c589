"""Compute again what is damaged in a cache, from what the cache itself records."""
