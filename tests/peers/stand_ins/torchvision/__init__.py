"""Stands in for torchvision where it does not install: the image transforms that the peers call, with its rules."""

from . import transforms

__all__ = ["transforms"]
