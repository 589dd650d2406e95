"""Foreign worlds: Gymnasium environments whose action is an item."""
