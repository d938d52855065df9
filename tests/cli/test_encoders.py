"""`asmil encoders`."""

import sys

import pytest


@pytest.fixture(autouse=True)
def _no_weights(tmp_path, monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setenv("ASMIL_WEIGHTS", str(tmp_path / "weights"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))


def row(text, name):
    """The words of an encoder's row, whose cells may wrap in a table with a long path."""
    lines = text.splitlines()
    first = next(place for place, line in enumerate(lines) if line.split()[:1] == [name])
    others = next(
        place for place in range(first + 1, len(lines)) if lines[place][:2].strip() or not lines[place].strip()
    )
    return " ".join(" ".join(lines[first:others]).split())


def test_the_table_says_whether_weights_are_here(asmil_here, tmp_path):
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "resnet50.pth").touch()
    done = asmil_here("encoders")
    assert done.returncode == 0
    assert "embedded" in row(done.stdout, "efficientnet_lite0")
    assert "present" in row(done.stdout, "resnet50")
    assert "file" in row(done.stdout, "resnet18_simclr")
    assert "download" in row(done.stdout, "resnet18")
    assert "login" in row(done.stdout, "uni")
    assert "default: efficientnet_lite0" in done.stdout


def test_one_encoder_with_what_to_do(asmil_here, tmp_path):
    done = asmil_here("encoders", "resnet50_trunc")
    assert "1024" in done.stdout
    assert "to 224 px (bilinear)" in done.stdout
    assert f"{tmp_path}/weights/resnet50_trunc.safetensors" in done.stdout
    assert "32 px" in asmil_here("encoders", "efficientnet_lite0").stdout


def test_an_encoder_of_your_own(asmil_here, tmp_path, monkeypatch):
    (tmp_path / "mine_for_the_table.py").write_text("def means():\n    return lambda x: x.mean((2, 3))\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    done = asmil_here("encoders", "mine_for_the_table:means")
    assert done.returncode == 0, done.stderr
    assert "3 per" in done.stdout


def test_an_unknown_one(asmil_here):
    done = asmil_here("encoders", "resnet5")
    assert done.returncode == 1
    assert "'resnet50'" in done.stderr
