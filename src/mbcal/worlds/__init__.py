"""Generated users whose truth is known."""
