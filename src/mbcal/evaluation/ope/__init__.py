"""Off-policy evaluation: the value of a policy from logged sessions of another."""
