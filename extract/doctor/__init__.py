"""What on this machine keeps clinit from working, or from working well: one check per file."""
