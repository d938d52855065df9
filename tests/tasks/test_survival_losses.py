from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asmil.tasks.survival_losses import cox_nll, hazard_ce, hazard_nll, incidence_nll

LARGEST = -np.log(1e-7)


def plain(kind, logits, bins, event, alpha):
    """The formulas as they are written, in double precision, patient by patient."""
    losses = []
    for row, y, e in zip(logits.astype(np.float64), bins, event, strict=True):
        if kind == "incidence":
            p = np.exp(row - row.max())
            p /= p.sum()
            of_event, of_censored = -np.log(max(p[y], 1e-7)), -np.log(max(1 - p[: y + 1].sum(), 1e-7))
            losses.append(of_event if e else (1 - alpha) * of_censored)
            continue
        h = 1 / (1 + np.exp(-row))
        alive = np.cumprod(1 - h)
        before = np.concatenate([[1.0], alive])[y]
        if kind == "hazard":
            of_event = -np.log(max(before, 1e-7)) - np.log(max(h[y], 1e-7))
            losses.append(of_event if e else -(1 - alpha) * np.log(max(alive[y], 1e-7)))
        else:
            kept = max(alive[y], 1e-7)
            of_event = -(1 - alpha) * np.log(1 - kept) - alpha * (np.log(before + 1e-7) + np.log(h[y] + 1e-7))
            losses.append(of_event if e else -(1 - alpha) * np.log(kept))
    return np.array(losses)


FUNCTIONS = {"incidence": incidence_nll, "hazard": hazard_nll, "hazard_ce": hazard_ce}


@pytest.mark.parametrize("kind", FUNCTIONS)
@pytest.mark.parametrize("alpha", [0.0, 0.15, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_formulas_as_written(kind, alpha, dtype):
    draw = np.random.default_rng(3)
    logits = draw.normal(size=(40, 6)) * 2
    bins, event = draw.integers(0, 6, 40), draw.integers(0, 2, 40)
    given_ = torch.tensor(logits, dtype=dtype), torch.tensor(bins), torch.tensor(event)
    found = FUNCTIONS[kind](*given_, alpha, "none")
    expected = plain(kind, logits, bins, event, alpha)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5 if dtype == torch.float32 else 1e-8, atol=1e-6)
    np.testing.assert_allclose(FUNCTIONS[kind](*given_, alpha).numpy(), expected.mean(), rtol=1e-5)


def test_numbers_by_hand():
    """Two bins of equal weight: dying in either costs log 2; being censored in the first too."""
    logits, event = torch.zeros(4, 2), torch.tensor([1, 1, 0, 0])
    bins = torch.tensor([0, 1, 0, 1])
    np.testing.assert_allclose(
        incidence_nll(logits, bins, event, reduction="none"), [np.log(2), np.log(2), np.log(2), LARGEST], rtol=1e-6
    )
    np.testing.assert_allclose(
        hazard_nll(logits, bins, event, reduction="none"), np.log(2) * np.array([1, 2, 1, 2]), rtol=1e-6
    )


def test_saturated_incidences_stop_at_the_floor_without_a_gradient():
    logits = torch.zeros(4, 5)
    logits[:, 0] = 50
    logits.requires_grad_()
    bins, event = torch.tensor([1, 4, 0, 0]), torch.tensor([1, 0, 0, 1])
    losses = incidence_nll(logits, bins, event, reduction="none")
    np.testing.assert_allclose(losses.detach(), [LARGEST, LARGEST, LARGEST, 0], atol=1e-5)
    losses.sum().backward()
    assert torch.equal(logits.grad[:3], torch.zeros(3, 5))


def test_small_survival_keeps_its_digits_in_single_precision():
    logits = torch.tensor([[12.0, 0.0, 0.0]])
    exact = -np.log(2 / (np.exp(12.0) + 2))
    found = incidence_nll(logits, torch.tensor([0]), torch.tensor([0]))
    assert float(found) == pytest.approx(exact, rel=1e-6)


@given(
    st.lists(st.lists(st.floats(-200, 200, width=32), min_size=3, max_size=3), min_size=1, max_size=6),
    st.integers(0, 2**16),
    st.sampled_from(sorted(FUNCTIONS)),
)
@settings(deadline=None, max_examples=60)
def test_losses_and_gradients_are_finite_everywhere(rows, seed, kind):
    draw = np.random.default_rng(seed)
    logits = torch.tensor(rows, requires_grad=True)
    bins, event = (torch.tensor(draw.integers(0, top, len(rows))) for top in (3, 2))
    loss = FUNCTIONS[kind](logits, bins, event, 0.3)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(logits.grad).all()


def test_half_precision_is_raised_to_single():
    logits = torch.randn(3, 4, dtype=torch.bfloat16)
    bins, event = torch.tensor([0, 3, 2]), torch.tensor([1, 0, 1])
    assert all(function(logits, bins, event).dtype == torch.float32 for function in FUNCTIONS.values())


def plain_cox(risk, time, event):
    terms = [e * (r - np.log(np.exp(risk[time >= t]).sum())) for r, t, e in zip(risk, time, event, strict=True)]
    return -np.mean(terms)


def test_cox_with_equal_times():
    draw = np.random.default_rng(1)
    risk, time, event = draw.normal(size=30), draw.integers(0, 8, 30).astype(float), draw.integers(0, 2, 30)
    found = cox_nll(torch.tensor(risk), torch.tensor(time), torch.tensor(event))
    assert float(found) == pytest.approx(plain_cox(risk, time, event), rel=1e-12)


def test_cox_caps_large_log_risks_unless_told_not_to():
    risk, time, event = torch.tensor([30.0, 2.0, 11.0]), torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1, 1, 0])
    assert float(cox_nll(risk, time, event)) == pytest.approx(
        plain_cox(np.array([10.0, 2.0, 10.0]), time.numpy(), event.numpy()), rel=1e-6
    )
    shifted = risk.double().add(2000).requires_grad_()
    loss = cox_nll(shifted, time, event, largest=None)
    assert loss.item() == pytest.approx(plain_cox(risk.double().numpy(), time.numpy(), event.numpy()), rel=1e-9)
    loss.backward()
    assert shifted.grad.abs().max() > 0


def test_cox_of_censored_patients_is_zero_with_a_graph():
    risk = torch.randn(4, requires_grad=True)
    loss = cox_nll(risk, torch.arange(4.0), torch.zeros(4))
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(risk.grad, torch.zeros(4))


def test_cross_entropy_of_a_death_that_no_hazard_foretold():
    """1 - S_y has no floor of 1e-7: a hazard of e^-20 costs 20, and where none is left the loss is still finite."""
    logits = torch.tensor([[-20.0], [-1000.0]], requires_grad=True)
    found = hazard_ce(logits, torch.tensor([0, 0]), torch.tensor([1, 1]), reduction="none")
    assert found[0].item() == pytest.approx(20, rel=1e-6)
    found.sum().backward()
    assert torch.isfinite(found).all()
    assert torch.isfinite(logits.grad).all()
