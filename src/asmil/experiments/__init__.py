"""Sweeps: many trainings of one plan, one table of results that grows, nothing repeated that is done."""
