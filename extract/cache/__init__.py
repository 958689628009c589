"""Feature caches: their documents, shards and heads, written and read."""
