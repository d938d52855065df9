"""The claims of the paper and how each is decided.

A rule that reads runs was written before these runs. The rules that decide `competitive-resnet` and `survival-best` by
the printed numbers, and `entmax-slower` by the time of one step, need no run; they were added when the other results
were known.
"""
