"""Published layouts of tensors, where they are too many to stand in the method's own file."""
