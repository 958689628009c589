"""Figures for a paper, and curves in the terminal."""
