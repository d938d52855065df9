"""Oracle files that are no model's: recognized by what is in them, answered without their numbers, compared in full."""

import copy
import json
import math

import numpy as np
import pytest
from scipy.optimize import brentq

from oracles.__main__ import check_file
from oracles.sheet import withhold
from oracles.sheets import KINDS, affine, normalizers, recognize
from shared_data import oracle_files, read_oracle

W = [math.cos(0.7 * place) + 0.1 for place in range(4)]


def softmax(z):
    return np.exp(z - np.max(z)) / np.exp(z - np.max(z)).sum()


def nsf(z):
    sigma = 1 / (1 + np.exp(-np.asarray(z)))
    return sigma / sigma.sum()


def entmax(z, alpha):
    def weights(tau):
        return np.maximum((alpha - 1) * z - tau, 0) ** (1 / (alpha - 1))

    top = (alpha - 1) * z.max()
    return weights(brentq(lambda tau: weights(tau).sum() - 1, top - 1, top, xtol=1e-16, rtol=1e-15))


def centered(values, v, p):
    """`values (v - <p, v>)`, the form of every normalizer's gradient."""
    return values * (v - (p * v).sum())


def described(p, gradient):
    return {"p": list(p), "grad_of_w_dot_p": list(gradient), "sum": float(p.sum()), "support": int((p > 0).sum())}


def another_small_section():
    z, w = np.array([0.4, -2.0, 1.5, 0.9]), np.array(W)
    zeta = 1 / (1 + math.exp(1.5))
    halved, normalized, sparse = softmax(z / 0.5), nsf(z), entmax(z, 1.3)
    slopes = np.where(sparse > 0, sparse, 1) ** 0.7 * (sparse > 0)
    gradients = {
        "softmax_T0.5": (halved, centered(halved / 0.5, w, halved)),
        "nsf": (normalized, centered(normalized / (1 + np.exp(z)), w, normalized)),
        "entmax_1.3": (sparse, slopes * (w - (slopes * w).sum() / slopes.sum())),
    }
    both = [
        zeta * a + (1 - zeta) * b
        for a, b in zip((softmax(z), centered(softmax(z), w, softmax(z))), gradients["nsf"], strict=True)
    ]
    gradients["mix_xi-1.5"] = (both[0], both[1])
    return [{"name": "mine", "z": list(z), "w": W, "out": {name: described(*of) for name, of in gradients.items()}}]


def another_large_section():
    z = 0.5 * np.random.Generator(np.random.PCG64(7)).standard_normal(300)
    p = softmax(z)
    gradient = centered(p, np.cos(0.7 * np.arange(300)) + 0.1, p)
    found = {
        "argmax": int(p.argmax()),
        "entropy": float(-(p * np.log(p)).sum()),
        "grad_l2": float(np.linalg.norm(gradient)),
    }
    rule = "z = 0.5 * numpy Generator(PCG64(7)).standard_normal(300), float64; w_i = cos(0.7 i) + 0.1"
    return [{"rule": rule, "seed": 7, "n": 300, "out": {"softmax_T1": found}}]


def verdict_on(tmp_path, content, name="any_name.json"):
    path = tmp_path / name
    path.write_text(json.dumps(content))
    return check_file(path)


def test_files_of_our_own_with_other_numbers_and_names_pass(tmp_path):
    content = {"first": another_small_section(), "second": another_large_section(), "third": []}
    verdict = verdict_on(tmp_path, content)
    assert (verdict.passed, verdict.method) == (True, "normalizers"), verdict.details
    assert verdict.details == f"{4 * 4 + 3} outputs"
    content["first"][0]["out"]["mix_xi-1.5"]["p"][0] += 1e-8
    assert "first[mine].out.mix_xi-1.5.p: off by 1.00e-08" in verdict_on(tmp_path, content).details


@pytest.mark.parametrize("no_limit", [None, math.inf, "inf"])
def test_a_temperature_without_limit_may_be_written_in_any_way(tmp_path, no_limit):
    row = {"tau": 1.0, "gamma": 0.5, "h": 20, "epsilon": 0.1, "kappa": 1.1}
    row |= {"T_max_suppression_proof": no_limit, "low_weight_at_T_max_proof": None, "feasible": True}
    assert verdict_on(tmp_path, {"rows": [row]}).passed
    row["T_max_suppression_proof"] = 4.0
    assert "T_max_suppression_proof" in verdict_on(tmp_path, {"rows": [row]}).details


def test_a_case_of_our_own_is_judged_in_every_type(tmp_path):
    """Three copies in the rule's own words; singular values from the eigenvalues of the Gram matrix."""
    draw = np.random.Generator(np.random.PCG64(99))
    features = np.maximum(draw.standard_normal((9, 20)), 0) + 2
    features[-3:] = features[:3]
    features = features.astype(np.float32).astype(float)
    gram = np.linalg.eigvalsh((features - features.mean(0)) @ (features - features.mean(0)).T)
    largest = math.sqrt(gram[-1])
    rule = (
        "numpy Generator(PCG64(99)); args {'N': 9, 'D': 20, 'relu': True, 'off': 2, 'dup': 3}: ...; rounded to float32"
    )
    tolerance = 20 * 2.0**-10 * max(largest, features.max())
    judged = {"rank_centred": 5, "needed": 8, "dependent": True, "largest_singular_value": largest}
    judged |= {"smallest_relevant": 0.0, "tolerance": tolerance}
    case = {"name": "own", "N": 9, "D": 20, "rule": rule, "dependent_by_count": False, "float16_eps": judged}
    content = {"cases": [case], "ratio_float16": 1.0}
    verdict = verdict_on(tmp_path, content)
    assert verdict.passed, verdict.details
    judged["rank_centred"] = 6
    assert "cases[own].float16_eps.rank_centred: off by 1" in verdict_on(tmp_path, content).details


@pytest.mark.parametrize(
    "path", oracle_files("normalizers.json", "affine.json", "statistics.json", "froc.json", "survival.json")
)
def test_official_files_are_covered(path):
    verdict = check_file(path)
    assert verdict.passed, verdict.details


@pytest.mark.parametrize("section", ["small", "large", "theorem1_part_a", "theorem1_part_b", "kl"])
def test_each_section_alone_is_recognized(section, tmp_path):
    content = {section: read_oracle("normalizers")[section][:2]}
    verdict = verdict_on(tmp_path, content)
    assert (verdict.passed, verdict.method) == (True, "normalizers")


CHANGES = [
    ("normalizers", ("small", 0, "out", "nsf", "p", 1), 1e-8),
    ("normalizers", ("small", 1, "out", "entmax_1.25", "grad_of_w_dot_p", 4), 1e-6),
    ("normalizers", ("small", 0, "out", "sparsemax", "support"), 1),
    ("normalizers", ("large", 0, "out", "mix_xi2", "argmax"), 1),
    ("normalizers", ("large", 0, "out", "nsf", "entropy"), 1e-7),
    ("normalizers", ("large", 0, "out", "entmax_1.75", "grad_first5", 4), 1e-6),
    ("normalizers", ("theorem1_part_a", 71, "worst_low"), 1e-17),
    ("normalizers", ("theorem1_part_b", 0, "T_max_suppression_as_printed_in_theorem"), 1e-8),
    ("normalizers", ("theorem1_part_b", 0, "feasible"), True),
    ("normalizers", ("kl", 3, "reverse_kl_online_anchor"), 1e-6),
    ("normalizers", ("kl", 0, "grad_online", 2), 1e-6),
    ("affine", ("cases", 11, "float32_eps", "smallest_relevant"), 1e-6),
    ("affine", ("cases", 11, "float64_eps", "tolerance"), 1e-16),
    ("affine", ("cases", 0, "softmax_shift", "rank_centred"), 1),
    ("affine", ("cases", 3, "dependent_by_count"), True),
    ("affine", ("ratio_float32",), 1e-3),
]


def quick_part(name):
    """The file, of `affine` the first dozen cases."""
    content = read_oracle(name)
    if name == "affine":
        content["cases"] = content["cases"][:12]
        content["ratio_float32"] = np.mean([case["float32_eps"]["dependent"] for case in content["cases"]])
    return content


@pytest.mark.parametrize(("name", "place", "by"), CHANGES, ids=str)
def test_every_number_counts(name, place, by, tmp_path):
    content = quick_part(name)
    *way, last = place
    holder = content
    for step in way:
        holder = holder[step]
    holder[last] = bool(by) if isinstance(holder[last], bool) else holder[last] + by
    verdict = verdict_on(tmp_path, content)
    assert verdict.passed is False
    assert verdict.details.count("off by") == 1
    assert str(next(step for step in reversed(place) if isinstance(step, str))) in verdict.details


def test_a_value_for_null_and_null_for_a_value_fail(tmp_path):
    content = quick_part("affine")
    content["cases"][2]["float32_eps"]["smallest_relevant"] = 0.5
    content["cases"][0]["float32_eps"]["smallest_relevant"] = None
    details = verdict_on(tmp_path, content).details
    assert "four_in_plane].float32_eps.smallest_relevant: None " in details
    assert "triangle].float32_eps.smallest_relevant: 0.57" in details


def test_what_is_not_known_is_said(tmp_path):
    content = {"small": read_oracle("normalizers")["small"][:1]}
    more = copy.deepcopy(content)
    more["small"][0]["out"]["hardmax"] = {"p": [1.0, 0.0, 0.0]}
    more["new"] = [{"x": 1.0}]
    details = verdict_on(tmp_path, more).details
    assert "small[three].out.hardmax.p: not answered" in details
    assert "new[0].x: not answered" in details
    more = copy.deepcopy(content)
    more["small"][0]["nsf_plain_float32"] = [0.0, 0.0, 0.0]
    more["about"] = "1.0"
    assert verdict_on(tmp_path, more).passed
    unknown = {"large": [{"rule": "z as I like", "out": {"nsf": {"sum": 1.0}}}]}
    assert "is not understood" in verdict_on(tmp_path, unknown).details


@pytest.mark.parametrize(("name", "kind"), [("normalizers", normalizers), ("affine", affine)])
def test_the_answers_are_found_without_the_official_numbers(name, kind):
    content = read_oracle(name)
    sheet = withhold(content, kind.GIVEN)
    changed = json.loads(json.dumps(content), parse_float=lambda text: float(text) + 1)

    def asked(value, key=""):
        if key in kind.GIVEN:
            return []
        if isinstance(value, dict):
            return [leaf for name, part in value.items() for leaf in asked(part, name)]
        if isinstance(value, list):
            return [leaf for part in value for leaf in asked(part, key)]
        return [value]

    assert set(asked(sheet)) == {None}
    assert asked(withhold(changed, kind.GIVEN)) == asked(sheet)


@pytest.mark.parametrize("content", [{}, [], {"cases": []}, {"small": "text"}, {"cases": [{"case": "a"}]}])
def test_files_without_anything_known_are_not_recognized(content):
    assert recognize(content) is None


def test_no_file_is_of_two_kinds():
    for name in ("normalizers", "affine", "statistics", "froc", "survival"):
        content = read_oracle(name)
        assert [kind.name for kind in KINDS if kind.recognizes(content)] == [name]
