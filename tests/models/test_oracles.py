"""Numbers that the official implementations answered, for the methods there are so far."""

import json

import pytest
import torch

from asmil import Anchor, Bag
from asmil.attention import nsf
from asmil.models import official
from asmil.tasks.classification import Classification
from oracle_rule import draw_bag, draw_state
from shared_data import oracle_files

TOLERANCE = 1e-5
LOGITS = ("logits", "logit")


def answers(model, bag):
    """Everything that an oracle of these methods may ask for, by the names of the files."""
    output = model(bag)
    logits = output.logits.unsqueeze(0)
    classes = [str(i) for i in range(max(2, model.n_outputs))]
    task = Classification(classes, single_output=model.n_outputs == 1)

    def loss(label):
        return task.loss(logits, torch.tensor([label]))

    def anchored(**options):
        return Anchor(model, **options).loss(bag, output.scores)

    found = {
        **dict.fromkeys(LOGITS, logits),
        "scores": output.scores,
        "attention": model.normalizer(output.scores),
        "bag_feature": output.embedding,
        "heatmap": model.heatmap(output),
        "nsf": nsf(output.scores),
        "prob": task.probabilities(logits)[:, 1:].float(),
        "kl_anchor_online_sum_over_tiles": anchored(),
        "cross_entropy_sum_over_tiles": anchored(divergence="cross_entropy"),
        "match_released_mean": anchored(divergence="cross_entropy", reduction="mean"),
        **output.extras,
    }
    for label in range(len(classes)):
        found[f"loss_label{label}"] = found[f"loss_ce_label{label}"] = loss(label)
    return found


@pytest.mark.parametrize("path", oracle_files("asmil_*.json", "abmil_[!v]*.json"))
def test_agrees_with_the_official_numbers(path):
    oracle = json.loads(path.read_text())
    model = official.load(draw_state(oracle["tensors"]), oracle["config"])
    ours = answers(model, Bag(draw_bag(*(oracle["bag"][key] for key in ("n", "d", "key")))))
    for name, expected in oracle["outputs"].items():
        values = torch.tensor(expected["values"])
        # a scalar may be a small difference of large terms: its scale is at least 1
        scale = max(float(values.abs().max()), 1.0 if values.numel() == 1 else 0.0)
        error = float((ours[name].detach().reshape(-1) - values).abs().max())
        assert error <= TOLERANCE * scale, f"{name}: off by {error / scale:.1e}"


@pytest.mark.parametrize("path", oracle_files("asmil_reference.json"))
def test_an_incomplete_state_dict_is_an_error_that_says_what_is_missing(path):
    from asmil import AsmilError

    state = draw_state(json.loads(path.read_text())["tensors"])
    for missing in ("cls", "sub_attention.2.k_proj.bias"):
        part = {name: tensor for name, tensor in state.items() if name != missing}
        with pytest.raises(AsmilError, match=f"asmil but lacks {missing}"):
            official.load(part)
    with pytest.raises(AsmilError, match="no known official model"):
        official.load({"something.weight": torch.zeros(2)})
