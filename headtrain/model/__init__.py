"""Trained heads at work: models with a backbone, exported, used, and given new classes."""
