"""What responds to recommendations: environment models, simulators, the generated newsfeed; and roll-outs."""
