"""Checks our methods against numbers that official implementations answered: `python -m oracles FOLDER`."""
