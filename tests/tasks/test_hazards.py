import torch

from asmil.tasks.hazards import hazards, risk, survival_from_hazards


def test_survival_is_the_product_of_not_dying():
    logits = torch.tensor([[-1.0, 0.5, 2.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    survival = survival_from_hazards(logits)
    torch.testing.assert_close(survival, (1 - hazards(logits)).cumprod(dim=1))
    torch.testing.assert_close(survival[1], torch.tensor([0.5, 0.25, 0.125], dtype=torch.float64))
    torch.testing.assert_close(risk(survival)[1], torch.tensor(-0.875, dtype=torch.float64))


def test_higher_hazards_are_a_higher_risk_and_large_logits_stay_finite():
    low, high = (risk(survival_from_hazards(torch.full((4,), value))) for value in (-1.0, 1.0))
    assert high > low
    extreme = survival_from_hazards(torch.tensor([-200.0, 60.0, 200.0]))
    assert torch.isfinite(extreme).all()
    assert 0 < extreme[1] < 1e-20
