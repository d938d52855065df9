"""Numbers that the official implementations answered."""

import copy
import json
import math
import re

import pytest
import torch

from asmil import AsmilError
from asmil.models import official
from oracles.__main__ import Verdict, check_file, main
from oracles.problem import is_model
from oracles.rule import draw_state
from shared_data import oracle_files, read_oracle


def of_a_model(path):
    return is_model(json.loads(path.read_text()))


@pytest.mark.parametrize("path", oracle_files("*.json", only=of_a_model))
def test_agrees_with_the_official_numbers(path):
    verdict = check_file(path)
    assert verdict.passed, verdict.details


@pytest.mark.parametrize("path", oracle_files("asmil_reference.json"))
def test_a_changed_number_a_new_output_and_a_broken_file_fail(path, tmp_path, capsys):
    content = json.loads(path.read_text())
    changed = copy.deepcopy(content)
    changed["outputs"]["logits"]["values"][1] += 1e-3
    more = copy.deepcopy(content)
    more["outputs"]["something_new"] = {"shape": [], "values": [1.0]}
    unknown = {**content, "tensors": [{"name": "w", "shape": [2]}]}
    for name, broken in {"changed": changed, "more": more, "unknown": unknown}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(broken))
    (tmp_path / "garbage.json").write_text("{")
    (tmp_path / "good.json").write_text(path.read_text())
    assert main([str(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    words = {line.split(".json")[0]: line for line in lines[1:-1]}
    assert all("FAIL" in words[name] for name in ("changed", "more", "unknown", "garbage"))
    off_by = float(words["changed"].partition("logits: off by ")[2].split()[0])
    assert off_by == pytest.approx(1e-3, rel=0.01)  # the model itself is off by rounding, which differs between CPUs
    assert "something_new: not answered" in words["more"]
    assert " pass " in words["good"]
    assert lines[-1].startswith("1 passed, 4 failed")


@pytest.mark.parametrize("empty", [{}, {"epoch": 3}, {"state_dict": {}}])
def test_a_checkpoint_without_tensors_is_refused(empty):
    with pytest.raises(AsmilError, match="no tensors"):
        official.load(empty)


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e200])
def test_weights_that_are_not_finite_are_refused_by_name(value):
    state = draw_state(read_oracle("abmil_ilse")["tensors"])
    name = "classifier.0.weight"
    with pytest.raises(AsmilError, match=re.escape(name)):
        official.load({**state, name: torch.full_like(state[name], value, dtype=torch.float64)})


def test_an_empty_folder_is_no_success(tmp_path):
    assert main([str(tmp_path)]) != 0


@pytest.mark.parametrize("path", oracle_files("asmil_reference.json"))
def test_an_incomplete_state_dict_is_an_error_that_says_what_is_missing(path):
    state = draw_state(json.loads(path.read_text())["tensors"])
    for missing in (
        ["cls"],
        ["sub_attention.2.k_proj.bias"],
        ["sub_attention.1.v_proj.weight", "sub_attention.2.v_proj.weight"],
    ):
        part = {name: tensor for name, tensor in state.items() if name not in missing}
        with pytest.raises(AsmilError, match=f"asmil but lacks {', '.join(missing)}"):
            official.load(part)
    with pytest.raises(AsmilError, match="official model"):
        official.load({"something.weight": torch.zeros(2)})


def small_state_dict(path):
    """Whether a file is of a model whose tensors can be taken away one by one in a moment."""
    content = json.loads(path.read_text())
    sizes = [math.prod(tensor["shape"]) for tensor in content.get("tensors") or []]
    return "outputs" in content and 0 < sum(sizes) < 100_000


@pytest.mark.parametrize("path", oracle_files("*.json", only=small_state_dict))
def test_whatever_is_taken_away_is_answered_in_words(path):
    content = json.loads(path.read_text())
    state = draw_state(content["tensors"])
    said = []
    for name, tensor in state.items():
        without = {other: value for other, value in state.items() if other != name}
        for broken in (without, {**state, name: torch.zeros([size + 1 for size in tensor.shape])}):
            try:
                official.load(broken, content["config"])
            except AsmilError as error:
                said.append(str(error))
    assert len(said) > len(state) / 2
    odd = [text for text in said if not re.search(r"looks like \w+ but|no known official|model\.|heads|width", text)]
    assert odd == []


@pytest.mark.parametrize("path", oracle_files("*.json", only=small_state_dict))
def test_tensors_that_the_method_does_not_have_are_refused_by_name(path):
    content = json.loads(path.read_text())
    more = {"online_encoder.region_attn.qkv.weight": torch.zeros(6, 2), "stray": torch.zeros(1)}
    with pytest.raises(AsmilError, match=r"(?s)online_encoder\.region_attn\.qkv\.weight.*stray"):
        official.load({**draw_state(content["tensors"]), **more}, content["config"])


def test_abmil_behind_the_encoder_of_r2t_is_not_loaded_as_abmil():
    both, encoder = (draw_state(read_oracle(name)["tensors"]) for name in ("abmil_wsi_ungated_2class", "r2t"))
    both |= {name: tensor for name, tensor in encoder.items() if name.startswith("online_encoder.")}
    with pytest.raises(AsmilError, match=r"abmil .*online_encoder\."):
        official.load(both)


@pytest.mark.parametrize(
    ("name", "unused"),
    [
        ("abmil_wsi_gated_3class", "dimreduction.bn.running_mean"),
        ("clam_sb_2class", "instance_loss_fn.labels"),
        ("mhim_v2_abmil", "merge.global_q_mm"),
    ],
)
def test_tensors_that_are_known_to_be_unused_are_left_out(name, unused):
    content = read_oracle(name)
    state = draw_state(content["tensors"])
    expected = official.load(state, content["config"]).state_dict()
    found = official.load({**state, unused: torch.ones(3)}, content["config"]).state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


@pytest.mark.parametrize("path", oracle_files("dtfd.json", "transmil_small_n9_2class.json"))
def test_checkpoints_load_as_they_were_saved(path):
    content = json.loads(path.read_text())
    state = draw_state(content["tensors"])
    expected = official.load(state, content["config"]).state_dict()
    modules = {}
    for name, tensor in state.items():
        module, _, rest = name.partition(".")
        modules.setdefault(module, {})[rest] = tensor
    saved = [
        {"state_dict": {f"model.{name}": tensor for name, tensor in state.items()}, "epoch": 3, "optimizer": {"lr": 1}},
        {f"module.{name}": tensor.numpy() for name, tensor in state.items()},
        {"model": state, "args": "--lr 1"},
    ]
    if all("." in name for name in state):
        moments = {"state": {0: {"exp_avg": torch.zeros(2)}}, "param_groups": [{"lr": 1}]}
        saved += [modules, {**modules, "optimizer": moments}]
    for checkpoint in saved:
        found = official.load(checkpoint, content["config"]).state_dict()
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    missing = next(name for name in state if name.endswith(("fc1.weight", "_fc1.0.weight")))
    part = {f"module.{name}": tensor for name, tensor in state.items() if name not in (missing, missing[:-6] + "bias")}
    with pytest.raises(AsmilError, match=re.escape(missing)):
        official.load(part, content["config"])


def test_the_files_of_the_repository_are_the_default(monkeypatch, capsys):
    monkeypatch.setattr("oracles.__main__.check_file", lambda path: Verdict(path.name, "", True))
    assert main([]) == 0
    assert f"{len(oracle_files('*.json'))} passed, 0 failed" in capsys.readouterr().out
