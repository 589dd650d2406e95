"""Readers of raw logs: one module per layout."""
