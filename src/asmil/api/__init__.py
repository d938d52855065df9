"""The public functions: train, load, evaluate, compare and predict from Python. Import them from `asmil`."""
