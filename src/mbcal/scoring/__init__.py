"""Candidates to scores, scores to choices: numpy and torch alike, no torch import."""
