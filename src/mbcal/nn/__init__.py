"""Neural networks over sessions."""
