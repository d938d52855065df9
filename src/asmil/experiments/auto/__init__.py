"""`asmil auto`: which method to use, whether attention pays, and how good the model will be on new patients."""
