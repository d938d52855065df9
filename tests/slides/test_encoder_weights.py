"""Where weights are found, how files are read, and what is said when they do not fit."""

import json
import os
import random
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from safetensors.torch import save, save_file
from torch import nn

from asmil.errors import AsmilError
from asmil.slides.encoders.base import EncoderEntry
from asmil.slides.encoders.registry import assemble, find_encoder, load_encoder
from asmil.slides.encoders.state import read_state, state_hash, unwrapped
from asmil.slides.encoders.weights import find_weights, how_to_get, present_weights, weights_folder
from drawn_weights import drawn_state
from patience import PATIENCE_S


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.bn = nn.BatchNorm2d(4)

    def forward(self, x):
        return self.bn(self.conv(x)).mean((2, 3))


def entry(**changes):
    about = {"name": "small", "summary": "for tests", "width": 4, "tile_px": 32, "mpp": 0.5, "licence": "none"}
    return EncoderEntry(**(about | {"url": "https://example.org/small", "build": Small} | changes))


@pytest.fixture
def state():
    return drawn_state(Small())


@pytest.fixture
def no_weights(tmp_path, monkeypatch):
    """No folder of weights and an empty cache of the hub."""
    import huggingface_hub.constants

    monkeypatch.setenv("ASMIL_WEIGHTS", str(tmp_path / "weights"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return tmp_path


def assembled(path, about=None):
    return assemble(about or entry(), path, torch.device("cpu"), "float32")


# Reading


def test_format_order_wrapping_and_precision_do_not_change_the_hash(tmp_path, state):
    save_file(state, tmp_path / "a.safetensors")
    torch.save(dict(reversed(state.items())), tmp_path / "b.pth")
    torch.save({"epoch": 3, "state_dict": {f"module.{k}": v for k, v in state.items()}}, tmp_path / "c.pt")
    student = {"teacher": {f"backbone.{k}": v for k, v in state.items()} | {"head.weight": torch.ones(2)}}
    torch.save(student, tmp_path / "d.bin")
    torch.save({k: v for k, v in state.items() if "tracked" not in k}, tmp_path / "e.pth")
    (tmp_path / "safetensors_by_another_name.bin").write_bytes(save(state))
    hashes = {assembled(path).weights_hash for path in tmp_path.iterdir()}
    assert hashes == {state_hash(state)}
    assert len(hashes.pop()) == 64


def test_the_hash_is_of_names_shapes_and_values(state):
    other = state | {"conv.bias": state["conv.bias"] + 1e-6}
    renamed = {("conv.offset" if name == "conv.bias" else name): value for name, value in state.items()}
    reshaped = state | {"conv.bias": state["conv.bias"][:, None]}
    assert len({state_hash(content) for content in (state, other, renamed, reshaped)}) == 4
    halves = {name: value.half() if value.is_floating_point() else value for name, value in state.items()}
    assert state_hash(halves) == state_hash({name: value.float() for name, value in halves.items()})


def test_half_precision_files_run_in_float32(tmp_path, state):
    save_file({name: value.half() for name, value in state.items()}, tmp_path / "half.safetensors")
    encoder = assembled(tmp_path / "half.safetensors")
    assert encoder(torch.zeros(1, 32, 32, 3, dtype=torch.uint8)).dtype == torch.float32


class Unsafe:
    def __reduce__(self):
        return (print, ("code ran",))


def test_files_that_could_run_code_are_refused(tmp_path, capfd):
    torch.save({"state_dict": Unsafe()}, tmp_path / "unsafe.pth")
    with pytest.raises(AsmilError, match=r"unsafe.pth"):
        read_state(tmp_path / "unsafe.pth")
    assert "code ran" not in capfd.readouterr().out


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("empty.pth", b""),
        ("text.pth", b"<html>not found</html>"),
        ("cut.safetensors", save(drawn_state(Small()))[:-7]),
        ("json.safetensors", b"\x05\x00\x00\x00\x00\x00\x00\x00{abcd"),
    ],
)
def test_broken_files_are_told_in_one_sentence(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(AsmilError, match=name) as told:
        read_state(tmp_path / name)
    assert "\n" not in str(told.value)


def test_missing_files_and_folders(tmp_path):
    with pytest.raises(AsmilError, match=r"nothing.pth"):
        load_encoder("resnet18", tmp_path / "nothing.pth")
    with pytest.raises(AsmilError, match="is a folder"):
        load_encoder("resnet18", tmp_path)


@pytest.mark.parametrize("content", [3, [torch.ones(1)], {"epoch": 3}, {"model": {}}])
def test_what_holds_no_state_dict_is_refused(content):
    with pytest.raises(ValueError, match=r"state dict|tensors"):
        unwrapped(content)


# Fitting


def test_misfits_name_the_first_tensors(tmp_path, state):
    def message(content):
        save_file(content, tmp_path / "weights.safetensors")
        with pytest.raises(AsmilError, match=r"weights.safetensors.*small") as told:
            assembled(tmp_path / "weights.safetensors")
        return str(told.value)

    assert "conv.bias" in message({k: v for k, v in state.items() if k != "conv.bias"})
    assert "head.weight" in message(state | {"head.weight": torch.ones(3)})
    wrong = message(state | {"conv.weight": torch.ones(4, 3, 5, 5)})
    assert "4 x 3 x 5 x 5" in wrong
    foreign = message({f"tower.{n}.w": torch.ones(1) for n in range(9)})
    assert "tower.0.w, tower.1.w, tower.2.w" in foreign
    assert "other encoder" in foreign


def test_a_conversion_that_misses_a_tensor_is_told(tmp_path, state):
    save_file(state, tmp_path / "weights.safetensors")
    about = entry(convert=lambda published: {"conv.weight": published["stem.weight"]})
    with pytest.raises(AsmilError, match=r"it lacks stem\.weight"):
        assembled(tmp_path / "weights.safetensors", about)


def test_a_network_may_keep_nothing_outside_its_state(tmp_path, state):
    class Hidden(Small):
        def __init__(self):
            super().__init__()
            self.register_buffer("grid", torch.ones(2), persistent=False)

    save_file(state, tmp_path / "weights.safetensors")
    with pytest.raises(RuntimeError, match="grid"):
        assembled(tmp_path / "weights.safetensors", entry(build=Hidden))


# Finding


def test_the_folder_of_weights_comes_before_what_is_embedded(no_weights, state):
    about = entry(embedded=lambda: Path("embedded.pth"))
    assert present_weights(about) == Path("embedded.pth")
    weights_folder().mkdir()
    for ending in (".bin", ".pth", ".safetensors"):
        path = weights_folder() / f"small{ending}"
        path.touch()
        assert present_weights(about) == path
    assert find_weights(about, Path("mine.pth")) == Path("mine.pth")


def test_the_folder_is_in_the_home_by_default(monkeypatch):
    monkeypatch.delenv("ASMIL_WEIGHTS", raising=False)
    assert weights_folder() == Path.home() / ".cache" / "asmil" / "weights"


def test_missing_weights_say_where_from_and_where_to(no_weights):
    with pytest.raises(AsmilError) as told:
        load_encoder("resnet18_simclr")
    for part in ("resnet18_simclr", "github.com/binli123/dsmil-wsi", f"{weights_folder()}/resnet18_simclr.pth"):
        assert part in str(told.value)


def in_hub_cache(folder: Path, repository: str, file: str, content: bytes) -> Path:
    """A file as huggingface_hub keeps it: refs/main names the commit, snapshots/<commit> has the files."""
    place = folder / ("models--" + repository.replace("/", "--"))
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text("a" * 40)
    (place / "snapshots" / ("a" * 40)).mkdir(parents=True)
    path = place / "snapshots" / ("a" * 40) / file
    path.write_bytes(content)
    return path


def test_the_cache_of_the_hub_is_used_offline(no_weights, state):
    about = entry(hub="someone/small")
    path = in_hub_cache(no_weights / "hub", "someone/small", "model.safetensors", save(state))
    assert present_weights(about) == find_weights(about) == path
    assert assembled(find_weights(about), about).weights_hash == state_hash(state)


def test_offline_and_not_there(no_weights):
    with pytest.raises(AsmilError, match=r"timm/resnet18.tv_in1k.*resnet18.safetensors"):
        load_encoder("resnet18")


def test_without_the_hub_package(no_weights, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert present_weights(find_encoder("resnet18")) is None
    with pytest.raises(AsmilError, match=r"pip install 'asmil\[hub\]'"):
        find_weights(find_encoder("resnet18"))


def test_how_to_get_gated_weights():
    about = entry(hub="someone/small", gated=True, hub_file="pytorch_model.bin")
    told = how_to_get(about)
    assert "https://example.org/small" in told
    assert "small.bin" in told
    assert "--weights" in told


@pytest.fixture
def hub(state):
    """A hub on this machine, with one open and one gated repository."""
    content = save(state)

    class Answers(BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.do_GET()

        def do_GET(self):
            if self.path.startswith("/someone/gated/"):
                self.send_response(401)
                self.send_header("X-Error-Code", "GatedRepo")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            found = self.path.startswith("/someone/open/resolve/main/model.safetensors")
            self.send_response(200 if found else 404)
            if found:
                self.send_header("ETag", '"0123456789abcdef"')
                self.send_header("X-Repo-Commit", "b" * 40)
            else:
                kind = "EntryNotFound" if self.path.startswith("/someone/open/") else "RepoNotFound"
                self.send_header("X-Error-Code", kind)
            self.send_header("Content-Length", str(len(content) if found else 0))
            self.end_headers()
            if found and self.command == "GET":
                self.wfile.write(content)

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()


DOWNLOADS = """
import json
from dataclasses import replace
from asmil.errors import AsmilError
from asmil.slides.encoders.registry import find_encoder
from asmil.slides.encoders.weights import find_weights, present_weights

told = {}
for name, changes in {
    "open": {"hub": "someone/open"},
    "gated": {"hub": "someone/gated", "gated": True},
    "no_file": {"hub": "someone/open", "hub_file": "other.bin"},
    "no_repository": {"hub": "nobody/nothing"},
}.items():
    about = replace(find_encoder("resnet18"), **changes)
    try:
        told[name] = str(find_weights(about))
        told["again"] = str(present_weights(about))
    except AsmilError as error:
        told[name] = str(error)
print(json.dumps(told))
"""


def test_weights_come_from_the_hub_once(hub, state, tmp_path):
    """In a process of its own, since huggingface_hub reads its settings once."""
    settings = {"HF_ENDPOINT": hub, "HF_HOME": str(tmp_path), "ASMIL_WEIGHTS": str(tmp_path), "HF_HUB_OFFLINE": "0"}
    environment = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()} | settings
    done = subprocess.run(
        [sys.executable, "-c", DOWNLOADS], env=environment, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["again"] == told["open"]
    assert state_hash(read_state(Path(told["open"]))) == state_hash(state)
    assert "huggingface.co/someone/gated" in told["gated"]
    assert "other.bin" in told["no_file"]
    assert "huggingface.co/nobody/nothing" in told["no_repository"]


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("kind", ["zip", "legacy", "safetensors"])
def test_damaged_files_of_weights_are_told(tmp_path, state, kind: str):
    """Whatever bytes are missing or altered, the file is read as it was or told in a sentence."""
    path = tmp_path / "weights.bin"
    if kind == "safetensors":
        save_file(state, path)
    else:
        torch.save(state, path, _use_new_zipfile_serialization=kind == "zip")
    content = path.read_bytes()
    draw = random.Random(0)
    told = []
    for _ in range(150):
        damaged = bytearray(content)
        for _ in range(draw.choice([1, 4, 30])):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        path.write_bytes(damaged[: draw.choice([len(damaged), draw.randrange(len(damaged))])])
        try:
            read_state(path)
        except AsmilError as error:
            told.append(str(error))
    assert len(told) > 20
    assert all("weights.bin" in sentence for sentence in told)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e200])
def test_weights_that_are_no_numbers_are_refused(tmp_path, state, value):
    name = next(name for name, tensor in state.items() if tensor.is_floating_point())
    state[name] = state[name].double()
    state[name].view(-1)[0] = value
    save_file(state, tmp_path / "nan.safetensors")
    with pytest.raises(AsmilError, match=name):
        read_state(tmp_path / "nan.safetensors")
