"""Train attention methods with CUDA graphs: a step is recorded once per bag length and then replayed.

A step of one bag launches about a hundred small kernels, and launching them takes longer than computing them. All
features are on the device (`training/resident.py`); bags are padded to a few lengths and their padding is masked; a
step (`step.py`) reads the next bag, the learning rate and random numbers on the device, so that replaying it does not
involve Python. Without a GPU the same steps are computed without a graph, which the tests use. `applies.py` decides
which settings are supported, and `train.py` trains.
"""
