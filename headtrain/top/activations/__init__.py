"""The outputs of the frozen part of the network, computed once and stored."""
