"""Train ASMIL with fused kernels on a GPU: all steps of an epoch without returning to Python, several seeds at once.

One step computes what `Trainer` computes with `models/asmil.py`, `attention/anchor.py` and `torch.optim.Adam`. The
features are on the device (`resident.py`), all weights of a training in one flat buffer (`layout.py`, `weights.py`).
A step is about twenty small kernels (`*_kernels.py`), recorded once as a CUDA graph (`step.py`). The models, optimizers
and anchors of the trainings are views of these buffers (`members.py`), so that validation, checkpoints and recordings
of the common training loop can read them directly. `applies.py` decides which settings are supported, and
`side_by_side.py` trains.
"""
