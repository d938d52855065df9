"""The ASMIL paper, runnable: its tables as data, recipes that run what is behind them, and its claims with verdicts."""
