"""ASMIL trained by fused kernels on a GPU: every step of an epoch without returning to Python, several seeds at once.

One step computes what `Trainer` computes with `models/asmil.py`, `attention/anchor.py` and `torch.optim.Adam`. Features
lie on the device (`resident.py`), all weights of a training in one flat buffer (`layout.py`, `weights.py`), and a step
is about twenty small kernels (`*_kernels.py`), recorded once as a CUDA graph (`step.py`). The models, optimizers and
anchors of the trainings are views of these buffers (`members.py`), so that validation, checkpoints and recordings of
the one training loop read them as they are. `honored.py` declares for which settings, `train.py` trains.
"""
