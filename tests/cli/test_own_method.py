"""A method of the user's own, from a file: the one in the documentation, and classes that cannot be trained."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import asmil
from asmil import AsmilError, MILClassifier, MILModel, Output
from asmil.models.own_method import problems_of

PAGE = (Path(__file__).parents[2] / "docs" / "own_method.md").read_text(encoding="utf-8")
EXAMPLE = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1]


class Base(MILModel):
    score_axes = ("head",)

    def __init__(self, in_features, n_outputs, config):
        super().__init__(in_features, n_outputs, config)
        self.gate = nn.Linear(in_features, 1)
        self.head = nn.Linear(in_features, n_outputs)

    def attend(self, bag):
        return self.gate(bag.features.float()).T

    def forward(self, bag):
        scores = self.attend(bag)
        embedding = (self.normalizer(scores) @ bag.features.float())[0]
        return Output(self.head(embedding), scores, embedding)


class ReturnsLogits(Base):
    def forward(self, bag):
        return super().forward(bag).logits


class ScoresOfWrongShape(Base):
    def forward(self, bag):
        output = super().forward(bag)
        return Output(output.logits, output.scores.T.expand(-1, 2), output.embedding)


class LogitsOfWrongShape(Base):
    def forward(self, bag):
        output = super().forward(bag)
        return Output(output.logits[None], output.scores, output.embedding)


class NotANumber(Base):
    def forward(self, bag):
        output = super().forward(bag)
        return Output(output.logits * torch.nan, output.scores, output.embedding)


class NamelessScores(Base):
    score_axes = ()


class PromisedScores(Base):
    def forward(self, bag):
        output = super().forward(bag)
        return Output(output.logits, None, output.embedding)


class OtherScores(Base):
    def attend(self, bag):
        return super().attend(bag) + (0 if self.gate.weight.requires_grad and torch.is_grad_enabled() else 1)

    def forward(self, bag):
        scores = super().attend(bag)
        return Output(self.head(bag.features.float().mean(0)), scores, bag.features.float().mean(0))


class NoHalf(Base):
    def attend(self, bag):
        return self.gate(bag.features).T


class NoSuper(Base):
    def __init__(self, in_features, n_outputs, config):
        nn.Module.__init__(self)
        self.gate = nn.Linear(in_features, 1)


class WrongArguments(Base):
    def __init__(self, width):
        super().__init__(width, 2, None)


class RandomInEval(Base):
    def forward(self, bag):
        output = super().forward(bag)
        return Output(output.logits + torch.rand(3), output.scores, output.embedding)


class LearnsNothing(Base):
    def forward(self, bag):
        output = super().forward(bag)
        return Output(output.logits.detach(), output.scores, output.embedding)


@pytest.mark.parametrize(
    ("model", "named"),
    [
        (ReturnsLogits, "Output"),
        (ScoresOfWrongShape, "scores"),
        (LogitsOfWrongShape, "logits"),
        (NotANumber, "NaN"),
        (NamelessScores, "score_axes"),
        (PromisedScores, "scores"),
        (OtherScores, "attend"),
        (NoHalf, "float16"),
        (NoSuper, "super"),
        (WrongArguments, "__init__"),
        (RandomInEval, "eval mode"),
        (LearnsNothing, "gradient"),
    ],
)
def test_what_a_class_does_not_fulfil_is_one_sentence(model, named):
    (problem,) = problems_of(model)
    assert named in problem
    with pytest.raises(AsmilError, match=f"{model.__name__}.*\n.*{re.escape(problem[:40])}"):
        MILClassifier(model, epochs=1).fit([np.ones((2, 4))] * 2, [0, 1])


def test_every_method_of_asmil_fulfils_it():
    for name in ("asmil", "abmil", "transmil", "max_pooling"):
        assert not list(problems_of(asmil.methods()[name].model))


@pytest.mark.heavy
def test_the_example_of_the_page_trains_predicts_and_compares(asmil_here, small_cohort, tmp_path, monkeypatch):
    assert len(EXAMPLE.splitlines()) <= 25
    monkeypatch.chdir(tmp_path)
    Path("my_method.py").write_text(EXAMPLE, encoding="utf-8")
    short = ("--set", "training.epochs=2", "--quiet")
    own = "my_method.py:GatedMean"
    train = ("train", small_cohort, "--method", own, "--out", "runs/mine", "--anchor", "nsf", *short)
    done = asmil_here(*train)
    assert done.returncode == 0, done.stderr
    assert asmil_here(*train).returncode == 0
    assert asmil_here("train", small_cohort, "--method", "mean_pooling", "--out", "runs/mean", *short).returncode == 0
    compared = asmil_here("compare", "runs/mine", "runs/mean")
    assert compared.returncode == 0, compared.stderr
    assert asmil_here("evaluate", "runs/mine").returncode == 0
    features = small_cohort.parent / "features"
    forget(own)
    refused = asmil_here("predict", "runs/mine", features, "--out", "p.csv")
    assert refused.returncode == 1
    assert f"--method {own}" in refused.stderr
    other = asmil_here("predict", "runs/mine", features, "--method", "my_method.py:Other")
    assert other.returncode == 1
    Path("elsewhere").mkdir()
    Path("my_method.py").rename("elsewhere/my_method.py")
    done = asmil_here(
        "predict", "runs/mine", features, "--method", "elsewhere/my_method.py:GatedMean", "--out", "p.csv"
    )
    assert done.returncode == 0, done.stderr
    assert Path("p.csv").read_text().count("\n") == 25
    forget(own)
    with pytest.raises(AsmilError, match="GatedMean"):
        asmil.load_run("runs/mine").predict(features)
    assert len(asmil.load_run("runs/mine", method="elsewhere/my_method.py:GatedMean").predict(features)) == 24


def forget(*names):
    """As in a new process."""
    from asmil.models import registry

    for name in list(registry._METHODS):
        if name in names or "elsewhere" in name:
            del registry._METHODS[name]


@pytest.mark.parametrize(
    ("method", "named"),
    [
        ("nowhere.py:Model", "nowhere.py"),
        ("no_such_module_here:Model", "no_such_module_here"),
        ("mine.py:Modell", "Model"),
        ("mine.py:other", "MILModel"),
        ("broken.py:Model", "ZeroDivisionError"),
    ],
)
def test_code_that_cannot_be_used_is_one_sentence(asmil_here, small_cohort, tmp_path, monkeypatch, method, named):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("import asmil\nclass Model(asmil.MILModel): pass\ndef other(): pass\n")
    Path("broken.py").write_text("1 / 0\n")
    done = asmil_here("train", small_cohort, "--method", method, "--out", "run")
    assert done.returncode == 1
    assert named in done.stderr
    assert "Traceback" not in done.stderr
    assert not Path("run").exists()


def test_classes_in_python(small_cohort, tmp_path):
    bags = [np.random.default_rng(n).normal(n % 2, size=(5, 6)) for n in range(8)]
    fitted = MILClassifier(Base, epochs=2).fit(bags, [0, 1] * 4)
    assert fitted.predict_proba(bags).shape == (8, 2)
    run = asmil.train(small_cohort, tmp_path / "run", method=Base, settings={"training.epochs": 1}, progress=False)
    assert run.method.endswith(":Base")
    assert len(run.predict(small_cohort.parent / "features")) == 24
    asmil.register("own_for_a_test")(Base)
    assert isinstance(asmil.build("own_for_a_test", in_features=6, n_outputs=2), Base)
    with pytest.raises(AsmilError, match="abmil"):
        asmil.register("abmil")(Base)
    forget("own_for_a_test")
