"""What the frozen part of the network gives out, computed once and stored."""
