"""Trained runs for use elsewhere: bundles, ONNX and torch.export."""
