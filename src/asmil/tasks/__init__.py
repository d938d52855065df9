"""What is predicted: losses, predictions and metrics of a task; imports no other room."""
