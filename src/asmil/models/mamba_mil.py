"""Mamba MIL: tiles pass through selective state-space layers, as a sequence or on the slide's grid, then ABMIL pools.

Yang et al., MambaMIL, 2024 (sequences); Zhang et al., 2DMamba, 2025 (grids).

    h = dropout(GELU(W x + b))                            N x I
    h = h + Mixer(RMSNorm(h))                             `blocks` times
    h = LayerNorm(h)
    z_i = w . tanh(V h_i + b_V) + b_w      b = sum_i softmax(z)_i h_i      logits = W_c b + b_c

Mixer, with E = 2 I channels and S states each:

    [u, g] = W_in y                                       E each, no bias
    u = SiLU(causal depth-wise convolution of u)          tile t sees t-3 .. t, zeros before the first
    [d, B, C] = W_x u                                     ceil(I / 16) + 2 S; RMSNorm on each with `inner_norms`
    dt = softplus(W_dt d + b_dt)                          E
    s = scan of exp(dt A) and dt u B, A = -exp(A_log)     `blocks/selective_scan.py` has the formulas
    out = W_out ((s C + D u) * SiLU(g))                   no bias

`scan: 1d`: tiles are a sequence in the order of the file, which therefore matters. It is read from the first tile to
the last, so that a long bag is processed in chunks, each with the states that the one before left.

`scan: 2d`: tiles are put into the cells of a grid by their coordinates, row by row; an empty cell holds a learned
vector and takes part in convolution and scan. By default the grid is the bounding box of the slide's tiles, and only
tiles are pooled. The official form has one grid for all slides (`grid_width`, `grid_height`) and pools its empty cells
too (`pool_empty_cells`). Every slide of a patient has its own grid.

Differences from the official code: docs/methods/mamba_mil.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional

from asmil.cohort.bag import Bag
from asmil.errors import AsmilError
from asmil.models.attention_pool import RunningPool
from asmil.models.base import MILModel, Output, masked_scores
from asmil.models.blocks.embedding import EmbeddingConfig, TileEmbedding
from asmil.models.blocks.exporting import refuse_in_export, warn_of_fixed_size
from asmil.models.blocks.layers import TileLinear, floating, full_precision, start_linear, tile_by_tile
from asmil.models.blocks.scoring import ScoreNetwork
from asmil.models.blocks.selective_scan import continued_scan, grid_scan, selective_scan
from asmil.models.official import Config, Converted, Tensors, converted, options_of, register_official, renamed
from asmil.models.registry import register

WIDTH = 128
EXPANSION = 2
KERNEL = 4
STEP_SIZES = (0.001, 0.1)
"""The range of dt at the start, as Mamba initializes it."""
MOST_CELLS = 256
"""Cells per tile that a grid may have; one that is emptier is a mistake in the coordinates or the step."""
LARGEST_GRID = 1 << 24
"""Cells of a grid of a given size."""


class MambaMILConfig(EmbeddingConfig):
    """Architecture of Mamba MIL."""

    scan: Literal["1d", "2d"] = Field("1d", description="tiles as a sequence, or on a grid by their coordinates")
    blocks: int = Field(1, ge=1, description="Mamba layers")
    states: int = Field(16, ge=1, description="S, the states of a channel")
    inner_norms: bool = Field(False, description="RMSNorm on what makes dt, B and C")
    attention: int = Field(128, ge=1, description="width of the attention network")
    dropout: float = Field(0.25, ge=0, lt=1, description="on the embedding")
    init: Literal["official", "mamba"] = Field(
        "official", description="of the step sizes; official: around 0.69, mamba: 0.001 to 0.1"
    )
    grid_step: int | None = Field(None, ge=1, description="2d: size of a cell, in pixels; null: from the coordinates")
    grid_width: int | None = Field(None, ge=1, description="2d: of the grid of every slide, in pixels; null: its own")
    grid_height: int | None = Field(None, ge=1, description="2d: see `grid_width`")
    pool_empty_cells: bool = Field(False, description="2d: empty cells take part in the pooling")

    @model_validator(mode="after")
    def _check(self) -> MambaMILConfig:
        of_grids = ("grid_step", "grid_width", "grid_height", "pool_empty_cells")
        given = [name for name in of_grids if getattr(self, name)]
        if self.scan == "1d" and given:
            raise ValueError(f"{given[0]} has no effect with scan = 1d; leave it out, or set scan to 2d")
        return self


class Path(Protocol):
    """How a mixer moves through the tiles."""

    def convolve(self, mixer: Mixer, u: Tensor) -> Tensor: ...

    def scan(self, mixer: Mixer, dt: Tensor, u: Tensor, b: Tensor, c: Tensor) -> Tensor: ...


class Sequence1d:
    """From the first tile to the last."""

    def convolve(self, mixer: Mixer, u: Tensor) -> Tensor:
        return mixer.convolve(functional.pad(u, (0, 0, KERNEL - 1, 0)))

    def scan(self, mixer: Mixer, dt: Tensor, u: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return selective_scan(dt, u, mixer.rates(), b, c)


@dataclass
class ContinuedSequence:
    """A chunk of a sequence after the chunks that this object has seen; without gradient.

    rows, states: for every mixer, the last rows before the convolution and the last state
    """

    rows: dict[Mixer, Tensor] = field(default_factory=dict)
    states: dict[Mixer, Tensor] = field(default_factory=dict)

    def convolve(self, mixer: Mixer, u: Tensor) -> Tensor:
        before = self.rows.get(mixer)
        extended = functional.pad(u, (0, 0, KERNEL - 1, 0)) if before is None else torch.cat([before, u])
        self.rows[mixer] = extended[-(KERNEL - 1) :].clone()
        return mixer.convolve(extended)

    def scan(self, mixer: Mixer, dt: Tensor, u: Tensor, b: Tensor, c: Tensor) -> Tensor:
        rates = mixer.rates()
        state = self.states.get(mixer, torch.zeros_like(rates))
        y, self.states[mixer] = continued_scan(dt, u, rates, b, c, state)
        return y


@dataclass(frozen=True)
class Grids:
    """The grids of a bag's slides, one after the other, each a list of cells row by row.

    shapes: rows and columns of each grid; cells: N, the cell of each tile
    """

    shapes: list[tuple[int, int]]
    cells: Tensor

    @property
    def sizes(self) -> list[int]:
        """The cells of each grid."""
        return [rows * columns for rows, columns in self.shapes]

    def convolve(self, mixer: Mixer, u: Tensor) -> Tensor:
        return torch.cat([Sequence1d().convolve(mixer, part) for part in u.split(self.sizes)])

    def scan(self, mixer: Mixer, dt: Tensor, u: Tensor, b: Tensor, c: Tensor) -> Tensor:
        rates, scanned = mixer.rates(), []
        parts = zip(*(rows.split(self.sizes) for rows in (dt, u, b, c)), strict=True)
        for shape, slide in zip(self.shapes, parts, strict=True):
            some_dt, some_u, some_b, some_c = (rows.unflatten(0, shape) for rows in slide)
            scanned.append(grid_scan(some_dt, some_u, rates, some_b, some_c).flatten(0, 1))
        return torch.cat(scanned)


@register(
    "mamba_mil",
    summary="tiles pass through a state-space layer, as a sequence or on the slide's grid, then attention pools them",
    paper="Yang et al., MambaMIL: Enhancing Long Sequence Modeling with Sequence Reordering in Computational "
    "Pathology; Zhang et al., 2DMamba: Efficient State Space Model for Image Representation with Applications on "
    "Giga-Pixel Whole Slide Image Classification",
    year=2025,
    presets={
        "official": {
            "model": {"scan": "2d", "grid_step": 512, "pool_empty_cells": True},
            "training": {
                "optimizer": "adamw",
                "lr": 1e-4,
                "weight_decay": 1e-5,
                "schedule": "constant",
                "epochs": 20,
            },
        }
    },
)
class MambaMIL(MILModel):
    """Mamba MIL; see the module's text for the formulas."""

    config_type = MambaMILConfig
    records_steps = False  # not tried on a GPU
    score_axes = ("branch",)
    smooths: tuple[str, ...] = ("late",)
    why_not_smoothed = "model.pool_empty_cells = true scores empty cells, which have no place in the graph of tiles"
    config: MambaMILConfig

    def __init__(self, in_features: int, n_outputs: int, config: MambaMILConfig) -> None:
        super().__init__(in_features, n_outputs, config)
        self.embedding = TileEmbedding(
            in_features, config, default_width=WIDTH, activation="gelu", dropout=config.dropout
        )
        width = self.embedding.width
        self.pad = nn.Parameter(torch.rand(width)) if config.scan == "2d" else None
        if config.pool_empty_cells:
            self.smooths = ()
        self.blocks = nn.ModuleList(MambaBlock(width, config.states, config.inner_norms) for _ in range(config.blocks))
        self.norm = nn.LayerNorm(width)
        self.attention = ScoreNetwork(width, config.attention, gated=False)
        self.head = nn.Linear(width, n_outputs)
        start_linear(self)
        if config.init == "mamba":
            for part in self.modules():
                if isinstance(part, Mixer):
                    part.start_steps()

    @property
    def padding_from(self) -> int | None:
        # what follows a tile has no effect on it
        return 1 if self.pad is None and not (self.embedding.mil_dropout.top or self.smoothed) else None

    @property
    def can_stream(self) -> bool:
        return self.pad is None and self.normalizer.streams and not self.smoothed

    def attend(self, bag: Bag) -> Tensor:
        cells, grids = self.contextualize(bag)
        return self._score(cells if grids is None else cells[grids.cells], bag)

    def _score(self, tiles: Tensor, bag: Bag) -> Tensor:
        return masked_scores(self.smooth_scores(tile_by_tile(self.attention, tiles, dim=1), bag), bag)

    def forward(self, bag: Bag) -> Output:
        cells, grids = self.contextualize(bag)
        if grids is not None and self.config.pool_empty_cells:
            return self._pool_cells(cells, grids)
        tiles = cells if grids is None else cells[grids.cells]
        scores = self._score(tiles, bag)
        embedding = (self.normalizer(scores).to(tiles.dtype) @ tiles).squeeze(0)
        return Output(self.head(embedding), scores, embedding)

    @torch.no_grad()
    def stream(self, chunks: Iterable[Tensor]) -> Output:
        path, pool = ContinuedSequence(), RunningPool()
        kept: list[Tensor] = []
        for features in chunks:
            tiles = self._layers(self.embedding(features), path)
            scores = self.attention(tiles)
            kept.append(scores.cpu())
            pool.add(self.normalizer.log_weights(scores), tiles)
        embedding = pool.mean().squeeze(0)
        return Output(self.head(embedding), torch.cat(kept, dim=1), embedding)

    def contextualize(self, bag: Bag) -> tuple[Tensor, Grids | None]:
        """What the pooling reads, N x I; with `scan: 2d` all cells, and the grids."""
        rows, grids = self.sequence(bag)
        return self._layers(rows, Sequence1d() if grids is None else grids), grids

    def sequence(self, bag: Bag) -> tuple[Tensor, Grids | None]:
        """What enters the first block: embedded tiles, or the cells of the grids."""
        embedded: Tensor = self.embedding(bag.features)
        if self.pad is None:
            warn_of_fixed_size("tiles are scanned in runs, as long as their number demands")
            return embedded, None
        grids = self.lay_out(bag)
        numbers = torch.arange(len(bag), device=embedded.device)
        absent = numbers.new_full((sum(grids.sizes),), -1)
        # of several tiles in a cell, the last
        tile_of = absent.scatter_reduce(0, grids.cells, numbers, "amax")
        empty = (tile_of < 0).unsqueeze(1)
        return torch.where(empty, self.pad.to(embedded.dtype), embedded[tile_of.clamp(min=0)]), grids

    def lay_out(self, bag: Bag) -> Grids:
        """The grids of the bag's slides."""
        refuse_in_export("the grid of tiles")
        if bag.places is None:
            raise AsmilError(
                f"{bag.id}: mamba_mil with model.scan = 2d needs the coordinates of the tiles; store them in the "
                "feature file as dataset 'coords' (N x 2), or set model.scan=1d"
            )
        places = bag.places.to(torch.float64)
        slides = torch.zeros(len(bag), dtype=torch.int64) if bag.slide_index is None else bag.slide_index
        slides = slides.to(places.device)
        cells = torch.empty(len(bag), dtype=torch.int64, device=places.device)
        shapes: list[tuple[int, int]] = []
        first = 0
        for slide in slides.unique():
            chosen = slides == slide
            shape, cells[chosen] = self._grid(places[chosen], bag.id)
            cells[chosen] += first
            shapes.append(shape)
            first += shape[0] * shape[1]
        return Grids(shapes, cells)

    def _grid(self, places: Tensor, name: str) -> tuple[tuple[int, int], Tensor]:
        """Rows and columns, and the cells (n) of the tiles of one slide."""
        config = self.config
        step = float(config.grid_step or usual_step(places))
        limits = (config.grid_width, config.grid_height)
        columns_rows = []
        for axis, limit in enumerate(limits):
            along = places[:, axis]
            if limit is None:
                index = ((along - along.min()) / step + 0.5).floor().long()
                columns_rows.append((int(index.max()) + 1, index))
                continue
            index, count = (along / step).floor().long(), int(limit // step) + 1
            if int(index.min()) < 0 or int(index.max()) >= count:
                option = ("grid_width", "grid_height")[axis]
                raise AsmilError(
                    f"{name}: tiles at {'xy'[axis]} = {along.min():.0f} to {along.max():.0f} do not fit into "
                    f"model.{option} = {limit}; set it to the size of the largest slide, or to null"
                )
            columns_rows.append((count, index))
        (columns, column), (rows, row) = columns_rows
        if rows * columns > (MOST_CELLS * (len(places) + MOST_CELLS) if None in limits else LARGEST_GRID):
            raise AsmilError(
                f"{name}: its {len(places)} tiles lie on a grid of {rows} x {columns} cells of {step:.0f} pixels; "
                "set model.grid_step to the distance between neighboring tiles"
            )
        return (rows, columns), row * columns + column

    def _layers(self, rows: Tensor, path: Path) -> Tensor:
        for block in self.blocks:
            rows = block(rows, path)
        return tile_by_tile(self.norm, rows)

    def _pool_cells(self, cells: Tensor, grids: Grids) -> Output:
        scores = tile_by_tile(self.attention, cells, dim=1)
        attention: Tensor = self.normalizer(scores)
        embedding = (attention.to(cells.dtype) @ cells).squeeze(0)
        of_tiles = torch.zeros_like(attention[0]).index_fill(0, grids.cells, 1.0)
        extras = {"padding_attention": 1 - attention[0] @ of_tiles, "cell_scores": scores}
        return Output(self.head(embedding), scores[:, grids.cells], embedding, extras=extras)


def usual_step(places: Tensor) -> float:
    """The most frequent distance between neighbors in a row or column of tiles (n x 2); 1 if no two are in one."""
    gaps = []
    for along, across in ((0, 1), (1, 0)):
        order = torch.argsort(places[:, along], stable=True)
        order = order[torch.argsort(places[order, across], stable=True)]
        moved = places[order].diff(dim=0)
        gaps.append(moved[(moved[:, across] == 0) & (moved[:, along] > 0), along])
    distances = torch.cat(gaps)
    if not len(distances):  # no two tiles share a row: the spacing of as many tiles on the same area
        extent = (places.amax(dim=0) - places.amin(dim=0)).clamp(min=1)
        return float((extent.prod() / max(1, len(places) - 1)).sqrt().clamp(min=1))
    return float(distances.mode().values)


class RMSNorm(nn.RMSNorm):
    """x / sqrt(mean(x^2) + 1e-5) * weight, in the type of the weight."""

    def __init__(self, width: int) -> None:
        super().__init__(width, eps=1e-5)

    def forward(self, rows: Tensor) -> Tensor:
        return super().forward(rows.to(self.weight.dtype))


class MambaBlock(nn.Module):
    """rows + Mixer(RMSNorm(rows))."""

    def __init__(self, width: int, states: int, inner_norms: bool) -> None:
        super().__init__()
        self.norm = RMSNorm(width)
        self.mixer = Mixer(width, states, inner_norms)

    def forward(self, rows: Tensor, path: Path) -> Tensor:
        mixed: Tensor = self.mixer(self.norm(rows), path)
        return rows + mixed


class Mixer(nn.Module):
    """The mixer of the module's text, n x I -> n x I."""

    def __init__(self, width: int, states: int, inner_norms: bool) -> None:
        super().__init__()
        channels, rank = EXPANSION * width, math.ceil(width / 16)
        self.sizes = (rank, states, states)
        self.in_projection = TileLinear(width, 2 * channels, bias=False)
        bound = KERNEL**-0.5  # as torch starts a convolution
        self.kernel = nn.Parameter(torch.empty(channels, KERNEL).uniform_(-bound, bound))
        self.kernel_bias = nn.Parameter(torch.empty(channels).uniform_(-bound, bound))
        self.selection = TileLinear(channels, sum(self.sizes), bias=False)
        self.norms = nn.ModuleList(RMSNorm(size) for size in self.sizes) if inner_norms else None
        self.step = TileLinear(rank, channels)
        self.log_rates = nn.Parameter(torch.arange(1, states + 1).float().log().repeat(channels, 1))
        self.skip = nn.Parameter(torch.ones(channels))
        self.out = TileLinear(channels, width, bias=False)

    def start_steps(self) -> None:
        """Draw the step sizes as Mamba does: log-uniform for a tile of zeros."""
        rank = self.sizes[0]
        nn.init.uniform_(self.step.weight, -(rank**-0.5), rank**-0.5)
        low, high = (math.log(size) for size in STEP_SIZES)
        steps = torch.empty_like(self.step.bias).uniform_(low, high).exp()
        with torch.no_grad():
            self.step.bias.copy_(steps + torch.log(-torch.expm1(-steps)))  # the inverse of softplus

    def rates(self) -> Tensor:
        """A, E x S, in float32 at least."""
        return -floating(self.log_rates).exp()

    def convolve(self, extended: Tensor) -> Tensor:
        """(3 + n) x E -> n x E: each row with the three before it."""
        n = extended.shape[0] - KERNEL + 1
        kernel = self.kernel.to(extended.dtype)
        mixed = self.kernel_bias.to(extended.dtype) + extended[:n] * kernel[:, 0]
        for offset in range(1, KERNEL):
            mixed = torch.addcmul(mixed, extended[offset : offset + n], kernel[:, offset])
        return mixed

    def forward(self, rows: Tensor, path: Path) -> Tensor:
        u, gate = self.in_projection(rows).chunk(2, dim=1)
        u = functional.silu(path.convolve(self, u))
        delta, b, c = self.selection(u).split(self.sizes, dim=1)
        if self.norms is not None:
            delta, b, c = (norm(part) for norm, part in zip(self.norms, (delta, b, c), strict=True))
        dt = functional.softplus(floating(self.step(delta)))
        with full_precision(rows):
            scanned = path.scan(self, dt, u, b, c)
        y = torch.addcmul(scanned.to(u.dtype), u, self.skip.to(u.dtype))
        mixed: Tensor = self.out(y * functional.silu(gate))
        return mixed


BLOCK_LAYERS = {
    "norm": "norm",
    "mixer.in_projection": "mixer.in_proj",
    "mixer.selection": "mixer.x_proj",
    "mixer.step": "mixer.dt_proj",
    "mixer.out": "mixer.out_proj",
}
INNER_NORMS = {f"mixer.norms.{i}": f"mixer.{name}_layernorm" for i, name in enumerate(("dt", "B", "C"))}
LAYERS = {
    "embedding.layers.0": "_fc1.0",
    "norm": "norm",
    "attention.value": "attention.0",
    "attention.weight": "attention.2",
    "head": "classifier",
}
PAD = "layers.pad_token"


def _convert(tensors: Tensors, config: Config) -> Converted:
    blocks = 1 + max(int(name.split(".")[2]) for name in tensors if name.startswith("layers.layers."))
    inner_norms = "layers.layers.0.mixer.dt_layernorm.weight" in tensors
    own = {**BLOCK_LAYERS, **(INNER_NORMS if inner_norms else {})}
    layers = dict(LAYERS)
    for number in range(blocks):
        layers |= {f"blocks.{number}.{ours}": f"layers.layers.{number}.{theirs}" for ours, theirs in own.items()}
    state = renamed(tensors, layers)
    for number in range(blocks):
        ours, theirs = f"blocks.{number}.mixer", f"layers.layers.{number}.mixer"
        state[f"{ours}.log_rates"] = tensors[f"{theirs}.A_log"]
        state[f"{ours}.skip"] = tensors[f"{theirs}.D"]
        state[f"{ours}.kernel"] = tensors[f"{theirs}.conv1d.weight"].squeeze(1)
        state[f"{ours}.kernel_bias"] = tensors[f"{theirs}.conv1d.bias"]
    grid = options_of(config, {"patch_size": "grid_step", "max_w": "grid_width", "max_h": "grid_height"})
    is_grid = str(config.get("scan", "2d" if "max_w" in config else "1d")) == "2d"
    pad = tensors[PAD]
    if is_grid:
        state["pad"] = pad
    return converted(
        state,
        scan="2d" if is_grid else "1d",
        blocks=blocks,
        states=state["blocks.0.mixer.log_rates"].shape[1],
        inner_norms=inner_norms,
        attention=len(state["attention.value.weight"]),
        pool_empty_cells=is_grid,
        **({option: int(value) for option, value in grid.items()} if is_grid else {}),
    )


register_official(
    "mamba_mil",
    (*LAYERS.values(), *(f"layers.layers.0.{layer}" for layer in BLOCK_LAYERS.values())),
    _convert,
    names=(PAD,),
)
