"""A model exported with one bag answers bags of any other size equally, or says that it cannot."""

import numpy as np
import pytest
import torch
from torch import nn

from asmil import AsmilError, AsmilWarning, Bag, build, methods

WIDTH, EXAMPLE_TILES = 24, 50
SIZE_IS_FIXED = {
    "dgr_mil": "landmarks are means of runs of tiles, as long as their number demands",
    "dtfd": "tiles are dealt into pseudo-bags by a permutation, which Python draws for their number",
    "mamba_mil": "tiles are scanned in runs, as long as their number demands",
    "r2t": "tiles are folded into a square whose side is computed from their number",
    "transmil": "tiles stand on a square whose side is computed from their number",
}
"""Methods that export, with a warning that only bags as large as the example are answered."""
NEEDS_MORE_THAN_TORCH = {
    "camil": "neighbors are searched with a k-d tree",
    "deepattnmisl": "tiles are clustered with scikit-learn's k-means",
    "patch_gcn": "neighbors are searched with a k-d tree",
    "sm_abmil": "neighbors are searched with a k-d tree",
}
"""Methods that refuse to be exported."""
OPTIONS = [("asmil", {"projections": "shared"}), ("asmil", {"embedding_layers": 2}), ("aem", {"base": "mha"})]
OPTIONS += [("simple_mil", {"attention": 8})]


class Exportable(nn.Module):
    """Plain tensors in, plain tensors out: logits, scores and heat map, as far as a method has them."""

    def __init__(self, model, heatmap=True):
        super().__init__()
        self.model = model
        self.tile_map = heatmap and model.has_tile_map

    def forward(self, features, coords):
        output = self.model(Bag(features, coords, validated=True))
        found = (output.logits, output.scores, self.model.tile_map(output) if self.tile_map else None)
        return tuple(one for one in found if one is not None)


def inputs(tiles):
    draw = np.random.default_rng(tiles)
    features = torch.from_numpy(draw.normal(size=(tiles, WIDTH)).astype(np.float32))
    return features, 256 * torch.stack([torch.arange(tiles) % 7, torch.arange(tiles) // 7], dim=1)


def made(name, options):
    torch.manual_seed(0)
    model = build(name, in_features=WIDTH, n_outputs=3, **options)
    return Exportable(model, heatmap=name not in SIZE_IS_FIXED).eval()


def export(module):
    tiles = torch.export.Dim("tiles", min=2)
    return torch.export.export(module, inputs(EXAMPLE_TILES), dynamic_shapes=({0: tiles}, {0: tiles}))


def cases():
    yield from ((name, {}) for name in sorted(methods()))
    yield from OPTIONS


def compare(exported, module):
    for tiles in (EXAMPLE_TILES, 7, 1000):
        torch.testing.assert_close(exported(*inputs(tiles)), module(*inputs(tiles)), rtol=1e-4, atol=1e-5)


@pytest.mark.heavy
@pytest.mark.parametrize(("name", "options"), [pytest.param(*case, id="-".join(map(str, case))) for case in cases()])
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::asmil.AsmilWarning")
def test_answers_bags_of_other_sizes(name, options):
    module = made(name, options)
    if name in NEEDS_MORE_THAN_TORCH:
        with pytest.raises(AsmilError, match="exported"):
            export(module)
    elif name in SIZE_IS_FIXED:
        with pytest.warns(AsmilWarning, match="as the example"), pytest.raises(torch._dynamo.exc.UserError):
            export(module)
    else:
        compare(export(module).module(), module)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_without_gradients_too():
    module = made("asmil", {})
    with torch.no_grad():
        compare(export(module).module(), module)


@pytest.mark.parametrize("name", ["asmil", "clam_sb", "mean_pooling"])
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_a_trace_answers_bags_of_other_sizes(name):
    module = made(name, {})
    compare(torch.jit.trace(module, inputs(EXAMPLE_TILES)), module)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_an_onnx_file_answers_bags_of_other_sizes(tmp_path):
    for package in ("onnx", "onnxscript"):
        pytest.importorskip(package)
    onnxruntime = pytest.importorskip("onnxruntime")
    model = made("asmil", {}).model

    class Logits(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, features):
            return self.model(Bag(features, validated=True)).logits

    module, (features, _) = Logits().eval(), inputs(EXAMPLE_TILES)
    tiles = torch.export.Dim("tiles")
    torch.onnx.export(module, (features,), tmp_path / "m.onnx", input_names=["features"], dynamic_shapes=({0: tiles},))
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    for size in (7, 1000):
        (answer,) = session.run(None, {"features": inputs(size)[0].numpy()})
        np.testing.assert_allclose(answer, module(inputs(size)[0]).detach().numpy(), atol=1e-5)
