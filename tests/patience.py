"""How long a test waits for another process before it takes it for stuck: long, since a machine may be busy."""

PATIENCE_S = 900.0
