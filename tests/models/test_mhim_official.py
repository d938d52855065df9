"""Official state dicts of MHIM, under the names that both versions and all bases use."""

import pytest
import torch

from asmil import AsmilError, Bag, build
from asmil.models import official
from asmil.models.transmil import LAYERS

FORMS = [(version, base) for version in (1, 2) for base in ("abmil", "transmil", "dsmil")]


def make(**options):
    torch.manual_seed(0)
    return build("mhim", 16, 3, inner=16, **options).eval()


ENCODER = {
    "abmil": {"attention.value": "attention.attention.0", "attention.weight": "attention.attention.2"},
    "transmil": {
        "class_token": "cls_token",
        "norm": "norm",
        **{
            ours: theirs.replace("pos_layer", "pos_embedding")
            for ours, theirs in LAYERS.items()
            if ours.startswith(("position", "layer"))
        },
    },
    "dsmil": {
        "streams.instance": "i_classifier.0",
        "streams.query.0": "b_classifier.q.0",
        "streams.query.1": "b_classifier.q.2",
        "streams.value": "b_classifier.v.1",
        "head": "b_classifier.fcc",
    },
}


def official_state(model):
    """The student's tensors under their official names."""
    version, base = model.config.version, model.config.base
    layers = {f"encoder.{ours}": f"online_encoder.{theirs}" for ours, theirs in ENCODER[base].items()}
    layers |= {"embedding.layers.0": "patch_to_emb.0" if version == 1 else "feature.0"}
    layers |= {"encoder.head": "predictor"} if base != "dsmil" else {}
    layers |= {f"merge.{name}": f"merge.attn.{name}" for name in ("to_q", "to_kv")}
    layers |= {"merge.to_out": "merge.attn.to_out.0", "merge.norm": "merge.norm", "merge.query": "merge.global_q"}
    state = {}
    for name, tensor in model.network.state_dict().items():
        layer = max((layer for layer in layers if name.startswith(layer)), key=len)
        state[layers[layer] + name.removeprefix(layer)] = tensor
    for name in ("merge.global_q", "online_encoder.cls_token"):
        if name in state:
            state[name] = state[name].unsqueeze(0)
    if base == "dsmil":
        state["online_encoder.b_classifier.fcc.weight"] = state["online_encoder.b_classifier.fcc.weight"].view(3, 3, 16)
        state["predictor.weight"] = torch.zeros(3, 16)  # owned by the official class, but not used
    return state


@pytest.mark.parametrize(("version", "base"), FORMS)
def test_official_tensors_become_student_and_teacher(version, base):
    options = {"merge_heads": 2, "merge_head_width": 4, "merge_k": 3} if version == 2 else {}
    model = make(version=version, base=base, **options)
    config = {"mask_ratio_h": 0.1, "mask_ratio_hr": 1.0, "cl_alpha": 0.3, "temp_t": 0.2, "merge_heads": 2}
    loaded = official.load(official_state(model), config)
    assert (loaded.config.version, loaded.config.base) == (version, base)
    bag = Bag(torch.randn(20, 16))
    torch.testing.assert_close(loaded(bag).logits, model(bag).logits)
    for mine, theirs in zip(loaded.teacher.parameters(), loaded.network.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    output = loaded.forward_masked(bag)
    assert (~output.extras["kept"]).sum() == 2
    assert loaded.recipe.consistency_weight == 0.3
    assert loaded.config.teacher_temperature == 0.2


def test_an_incomplete_official_state_is_named():
    state = official_state(make(base="transmil"))
    del state["online_encoder.layer2.norm.weight"]
    with pytest.raises(AsmilError, match=r"online_encoder\.layer2\.norm\.weight"):
        official.load(state)
