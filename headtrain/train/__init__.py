"""Heads that are trained side by side: a bank, its losses, its steps, its evaluation."""
