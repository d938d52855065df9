"""`asmil encoders`: the models that turn tiles into features."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from asmil.cli.options import argument

if TYPE_CHECKING:
    from asmil.slides.encoders.base import EncoderEntry

WIDE = 110
"""Windows of at least this many columns have room for a description of each encoder."""


def encoders(
    name: Annotated[
        str | None, argument("An encoder to explain, or your own: file.py:callable or module:callable.")
    ] = None,
) -> None:
    """List the encoders and whether their weights are installed, or explain one.

    Example: asmil encoders efficientnet_lite0
    """
    from asmil.console import results, say
    from asmil.reporting import Table, print_table
    from asmil.slides.encoders import registry

    console = results()
    if name is None:
        columns = ("encoder", "features", "tile", "licence", "weights", "needs", "what it is")
        rows = [
            [
                entry.name,
                str(entry.width),
                f"{entry.tile_px} px at {entry.mpp:g} um",
                entry.licence,
                *_weights(entry),
                entry.summary,
            ]
            for entry in registry.encoders().values()
        ]
        narrow = frozenset({"what it is"} if console.width < WIDE else ())
        print_table(Table(columns, rows, narrow=narrow), console)
        say(console, f"default: {registry.DEFAULT_ENCODER}; `asmil encoders NAME` explains one encoder")
        return
    for key, value in _details(registry.find_encoder(name)).items():
        say(console, f"{key + ':':<11}{value}")


def _weights(entry: EncoderEntry) -> tuple[str, str]:
    """Whether the weights are here, and what they still need."""
    from asmil.slides.encoders.weights import present_weights

    path = present_weights(entry)
    if path is not None:
        return ("embedded" if entry.embedded is not None and path == entry.embedded() else f"present at {path}"), ""
    if entry.hub is None:
        return "missing", "a file"
    return "missing", "terms and login" if entry.gated else "a download"


def _details(entry: EncoderEntry) -> dict[str, str]:
    from asmil.settings.own_code import names_code
    from asmil.slides.encoders.weights import how_to_get, present_weights

    details = {
        "encoder": f"{entry.name}: {entry.summary}",
        "features": f"{entry.width} per tile",
        "tile": f"{entry.tile_px} px at {entry.mpp:g} um/px is recommended",
    }
    if names_code(entry.name):
        return details | {"transform": "gets values from 0 to 1; everything else is up to it"}
    weights = present_weights(entry)
    return details | {
        "resizing": _resizing(entry),
        "mean, std": f"{_numbers(entry.mean)}; {_numbers(entry.std)}",
        "licence": entry.licence + (", gated" if entry.gated else ""),
        "terms": entry.url,
        "weights": f"missing; {how_to_get(entry)}" if weights is None else f"at {weights}",
    }


def _resizing(entry: EncoderEntry) -> str:
    side_px = entry.transform.resize_px
    if side_px is None:
        return f"none; tiles of {entry.min_px} px or more are used as they are"
    crop = f", then the center of {entry.input_px} px" if entry.input_px != side_px else ""
    return f"to {side_px} px ({entry.interpolation}){crop}"


def _numbers(values: tuple[float, ...]) -> str:
    return ", ".join(f"{value:g}" for value in values)
