"""Synthetic cohorts, of bags of features and of slides, whose truth is known."""
