"""Stands in for torchmil where it is not installed, so that the page on the anchor runs all the same."""
