"""A registry of model versions: published with torch, opened and verified without."""
