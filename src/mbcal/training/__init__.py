"""Fitting networks: the training loop, losses, targets, randomness."""
