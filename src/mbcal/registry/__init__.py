"""Versions of models on disk, verified without torch."""
