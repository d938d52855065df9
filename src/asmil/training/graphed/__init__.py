"""Attention methods trained with CUDA graphs: a step is recorded once for each length of bags, then only replayed.

A step of one bag is a hundred small kernels, and starting them takes longer than computing them. All features lie on
the device (`training/resident.py`); bags are padded to a few lengths and their padding is masked;
a step (`step.py`) reads which bag is due, its learning rate and its random numbers on the device, so that replaying it
needs nothing of Python. Without a GPU the same steps are computed without a graph, which is what the tests do.
`honored.py` declares for which settings, `train.py` trains.
"""
