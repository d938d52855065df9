import pytest
import torch

import anchor_cost
from anchor_cost import (
    PAPER,
    count_parameters,
    inference_cost,
    measure_method,
    memory_table,
    method_table,
    paper_table,
    percent,
    temporal_bytes,
)
from asmil import Anchor, build, methods
from markdown_table import markdown_table
from measuring import make_bag, peak_tensor_megabytes, training_step

CPU = torch.device("cpu")


def test_every_method_with_scores_is_measured():
    scored = {name for name, method in methods().items() if method.model.score_axes}
    assert {name for name, _ in anchor_cost.scored_labels().values()} == scored


def test_multiply_adds_are_those_counted_by_hand():
    model = build("abmil", in_features=384, n_outputs=3)
    by_hand = 2000 * (384 * 128 + 2 * 128 * 128 + 128 + 128) + 128 * 3
    assert inference_cost(model, make_bag(2000, 384)) == (count_parameters(model), by_hand)


@pytest.mark.parametrize("name", ["abmil", "asmil", "mhim"])
def test_a_step_with_an_anchor_trains_the_model_and_moves_the_anchor(name):
    torch.manual_seed(0)
    model = build(name, in_features=16, n_outputs=3)
    bag = make_bag(60, 16)
    anchor = Anchor(model, momentum=0.5)
    step = training_step(model, bag, anchor)
    step()
    before = [parameter.clone() for parameter in anchor.parameters()]
    step()
    assert any(not torch.equal(old, new) for old, new in zip(before, anchor.parameters(), strict=True))


def test_peak_memory_counts_what_lives_at_the_same_time():
    def step():
        kept = torch.zeros(2**18)  # 1 MB
        for _ in range(3):
            torch.zeros(2**19).add_(1)  # 2 MB, let go each time
        return kept

    assert peak_tensor_megabytes(step, CPU) == pytest.approx(3, abs=0.01)


def test_measured_numbers_stand_in_the_tables():
    row = measure_method("dsmil", {}, tiles=50, width=16, rounds=2, device=CPU) | {"label": "dsmil"}
    assert row["anchored_mb"] > row["plain_mb"] > 50 * 16 * 4 / 2**20
    assert 0 < row["anchor_parameters"] < row["parameters"]
    assert "| dsmil | " in method_table([row])
    line = paper_table([row]).splitlines()[-1]
    assert "0.57 → 0.58 | +2 %" in line
    assert "60 → 145 | +142 %" in line


@pytest.mark.parametrize(("name", "rows"), [("abmil", 1), ("asmil", 64), ("dsmil", 3)])
def test_temporal_averages_take_four_bytes_a_row_and_tile(name, rows):
    bag = make_bag(50, 16)
    assert temporal_bytes(build(name, in_features=16, n_outputs=3), bag) == 4 * rows * 50
    line = memory_table([{"label": name, "tiles": 50, "anchor_bytes": 2**20, "temporal_bytes": 4 * rows * 50}])
    assert line.endswith(f"| {name} | 1.00 | {4 * rows * 547 * 5000 / 2**20:.0f} |")


def test_the_papers_overheads_are_those_it_claims():
    times = [printed.seconds[1] / printed.seconds[0] for printed in PAPER.values()]
    assert (percent(min(times)), percent(max(times))) == ("+2 %", "+23 %")


def test_markdown_sets_words_left_and_numbers_right():
    assert markdown_table(["a", "b"], [["x", "1"]]) == "| a | b |\n| --- | ---: |\n| x | 1 |"
