"""From the decision log to the next live version."""
