"""Results to look at: figures and pages."""
