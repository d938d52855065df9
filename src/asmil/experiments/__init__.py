"""Sweeps: train and measure every run of a plan, and collect the results in one table; finished runs are kept."""
