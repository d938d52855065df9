"""Published layouts of tensors that are too long for the file of the method."""
