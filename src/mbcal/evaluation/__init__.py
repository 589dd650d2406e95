"""Measuring policies: evaluation, off-policy estimates, experiments. Nothing here is served to users."""
