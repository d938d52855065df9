"""A run on disk: everything that is read from its folder, and the models in it."""
