"""The executor for many small trainings: their models are stacked, and all take a step with one call of torch.

Every training has the result that it would have alone, up to rounding. `step.py` takes the steps, `stack.py` holds the
stacked tensors, `bags.py` the bags that the trainings share, `train.py` trains. What the executor honors is declared in
`training/honored.py`; `rehearsal.py` tries the first step of every training before it starts.
"""
