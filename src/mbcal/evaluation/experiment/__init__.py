"""Experiments: methods, seeds and protocols in one resumable run."""
