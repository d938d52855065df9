"""Encoders: their registry entries, and networks that are ready to run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from asmil.errors import AsmilError
from asmil.slides.encoders.transform import Interpolation, Transform

State = dict[str, Tensor]
Precision = Literal["auto", "float32", "bf16"]

CPU_PIXELS = 8 * 256 * 256
"""Pixels that a thread encodes at once: larger batches are slower, since they exceed the CPU caches."""

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class EncoderEntry:
    """A registered encoder.

    width: number of features of a tile
    tile_px, mpp: side of a tile in pixels and its microns per pixel, as recommended by the authors
    build: creates the network, which maps normalized n x 3 x h x w to n x width and stores nothing outside its state
        dict (it is created on the meta device, without memory, and the weights are loaded afterwards)
    input_px: input side of the network; None: any
    resize_px: tiles are resized to this side and center-cropped to input_px; None: resized to input_px
    min_px: the smallest tile
    mean, std: of the channels, for values of 0 to 1
    licence: licence of the weights
    hub, hub_file: repository and file on Hugging Face
    gated: whether the hub requires a login and accepted terms
    url: address of the terms and the weights
    embedded: returns the file of weights that come with the installation
    exact_in_bf16: whether bf16 features are close to float32 ones; precision "auto" uses bf16 only then
    convert: maps the published names (and tensors) to those of our network; omitted tensors are not used
    """

    name: str
    summary: str
    width: int
    tile_px: int
    mpp: float
    licence: str
    url: str
    build: Callable[[], nn.Module]
    input_px: int | None = None
    resize_px: int | None = None
    min_px: int = 32
    interpolation: Interpolation = "bicubic"
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD
    hub: str | None = None
    hub_file: str = "model.safetensors"
    gated: bool = False
    embedded: Callable[[], Path] | None = None
    exact_in_bf16: bool = True
    convert: Callable[[Mapping[str, Tensor]], State] | None = None

    @property
    def transform(self) -> Transform:
        """The preprocessing of a tile."""
        return Transform(self.resize_px or self.input_px, self.input_px, self.interpolation, self.mean, self.std)


class Encoder:
    """A network that is ready to run.

    network: maps transformed n x 3 x h x w to n x width; set to eval mode and moved to the device
    weights_hash: SHA-256 of the weights, "" if there are none
    precision: of the network; the features are always float32
    cast: in bf16, whether to convert the weights (faster) instead of using autocast
    """

    def __init__(
        self,
        name: str,
        network: nn.Module,
        width: int,
        weights_hash: str,
        transform: Transform,
        device: torch.device,
        precision: Literal["float32", "bf16"] = "float32",
        min_px: int = 1,
        cast: bool = True,
    ) -> None:
        self.name, self.width, self.weights_hash, self.device = name, width, weights_hash, device
        self.transform, self.precision, self.min_px = transform, precision, min_px
        self.dtype = torch.bfloat16 if precision == "bf16" and cast else torch.float32
        self.autocast = precision == "bf16" and not cast
        self.network = network.eval().requires_grad_(False).to(device, self.dtype)
        self.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    @torch.inference_mode()
    def __call__(self, tiles: Tensor) -> Tensor:
        """Features, n x width float32 on the encoder's device, of tiles, uint8 n x p x p x 3 on any device.

        The call is asynchronous on a GPU: the result may not be ready when it returns.
        """
        if min(tiles.shape[1:3]) < self.min_px:
            raise AsmilError(
                f"encoder {self.name}: tiles of {tiles.shape[2]} x {tiles.shape[1]} px are too small for its network; "
                f"use tiles of at least {self.min_px} px"
            )
        if not len(tiles):
            return torch.zeros(0, self.width, device=self.device)
        return torch.cat(
            [self._encoded(part) for part in tiles.split(self.tiles_at_once(tiles.shape[1]) or len(tiles))]
        )

    def _encoded(self, tiles: Tensor) -> Tensor:
        inputs = self.transform(tiles.to(self.device, non_blocking=True)).to(self.dtype)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
            features: Tensor = self.network(inputs)
        return features.float()

    def tiles_at_once(self, tile_px: int) -> int | None:
        """Batch size for tiles of a given side: on a CPU as many as fit its caches; None: all."""
        if self.device.type != "cpu":
            return None
        return max(1, CPU_PIXELS // tile_px**2) * torch.get_num_threads()
