"""A small encoder with drawn weights, for programs that let their users bring one."""

import timm
import torch
from torchvision import transforms


class Pooled(torch.nn.Module):
    """The mean of a drawn convolution over a tile."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn = timm.create_model("drawn")

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.drawn(images)[0].mean((2, 3))


TO_TENSOR = transforms.Compose([transforms.ToTensor()])
