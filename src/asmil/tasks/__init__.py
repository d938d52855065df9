"""Prediction tasks: their losses, predictions and metrics; imports no other subpackage."""
