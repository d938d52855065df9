"""Figures of pages as files for print: their sizes, their text, and that they show what the page shows."""

from __future__ import annotations

import io
import itertools
import re

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from PIL import Image

from asmil.reporting.drawing import COLORS, ONE_COLUMN, TWO_COLUMNS, make_logarithmic, new_figure, png_bytes, svg_text
from asmil.reporting.print_files import column_width, print_files

PIXELS = {85: 1004, 180: 2126}
"""Of 300 dots per inch."""
COLOR_BLINDNESS = {
    "none": np.eye(3),
    "deuteranopia": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "protanopia": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "tritanopia": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
}
"""Machado, Oliveira and Fernandes 2009, of linear RGB."""


def drawn(width: float) -> tuple[str, bytes]:
    """A figure with everything that figures have, as SVG, and as PNG with the pixels of the printed one."""
    with new_figure(width, 3.0) as figure:
        left, right = figure.subplots(1, 2)
        left.plot([1, 10, 300], [1, 3, 2], "o--", label="a $x^2$ & <b>")
        left.fill_between([1, 10, 300], [0, 1, 1], [2, 4, 3], alpha=0.2)
        left.scatter([5, 50], [1, 3], s=[20, 60], alpha=0.5)
        left.set(title="Title", ylabel="rotated", ylim=(0.5, 3.5))
        make_logarithmic(left, "x")
        left.legend()
        right.bar([0, 1], [2, 3], alpha=0.6)
        right.text(0.5, 1, "two\nlines", ha="center")
        millimeters = 85 if width == ONE_COLUMN else 180
        return svg_text(figure), png_bytes(figure, PIXELS[millimeters] / width)


@pytest.mark.parametrize(("width", "millimeters"), [(ONE_COLUMN, 85), (TWO_COLUMNS, 180)])
def test_a_figure_is_printed_as_it_is_on_the_page(width, millimeters):
    svg, shown = drawn(width)
    assert column_width(svg) == millimeters
    files = print_files(svg)
    assert set(files) == {"pdf", "svg", "png"}
    assert f'width="{millimeters}mm"'.encode() in files["svg"]
    box = re.search(rb"/MediaBox \[ 0 0 ([\d.]+) ([\d.]+) \]", files["pdf"])
    assert float(box[1]) == pytest.approx(millimeters / 25.4 * 72, abs=0.1)
    assert b"/FontFile2" in files["pdf"]  # text is text
    printed, page = (Image.open(io.BytesIO(content)) for content in (files["png"], shown))
    assert printed.size[0] == PIXELS[millimeters]
    assert round(printed.info["dpi"][0]) == 300
    paper = Image.new("RGBA", page.size, "white")
    paper.alpha_composite(page.convert("RGBA"))
    difference = np.asarray(printed.convert("L"), float) - np.asarray(paper.convert("L").resize(printed.size), float)
    assert np.abs(difference).mean() < 2
    assert print_files(svg) == files


def test_a_figure_whose_text_would_be_too_small_gets_two_columns():
    assert column_width(drawn(1.3 * ONE_COLUMN)[0]) == 180
    assert b'width="85mm"' in print_files(drawn(TWO_COLUMNS)[0], 85)["svg"]


def test_a_picture_is_printed_on_white_paper():
    content = io.BytesIO()
    Image.new("RGBA", (1200, 300), (0, 0, 0, 0)).save(content, "PNG")
    files = print_files(content.getvalue())
    with Image.open(io.BytesIO(files["png"])) as printed:
        assert printed.size == (2126, 531)
        assert printed.convert("RGB").getpixel((5, 5)) == (255, 255, 255)
    assert b'width="180mm" height="45.000mm"' in files["svg"]


@pytest.mark.parametrize("kind", COLOR_BLINDNESS)
def test_color_blind_readers_can_tell_colors_apart(kind):
    def perceived(color: str) -> np.ndarray:
        """CIELAB."""
        values = np.array(to_rgb(color))
        linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
        seen = np.clip(np.array(COLOR_BLINDNESS[kind]) @ linear, 0, 1)
        to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
        xyz = np.cbrt(to_xyz @ seen / [0.9505, 1.0, 1.089])
        return np.array([116 * xyz[1] - 16, 500 * (xyz[0] - xyz[1]), 200 * (xyz[1] - xyz[2])])

    distances = [np.linalg.norm(perceived(a) - perceived(b)) for a, b in itertools.combinations(COLORS, 2)]
    assert min(distances) > 10
