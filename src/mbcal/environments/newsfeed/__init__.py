"""The generated newsfeed: a world whose truth is known."""
