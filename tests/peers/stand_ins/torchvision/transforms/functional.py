"""`to_tensor` of torchvision."""

from . import ToTensor

to_tensor = ToTensor()
