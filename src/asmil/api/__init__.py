"""The public functions: everything the commands do, from Python. Import them from `asmil`."""
