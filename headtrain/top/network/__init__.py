"""The backbone cut in two: its frozen part, its plastic blocks, their optimizer."""
