"""Runs go to the hub and come back, against a server on this machine with the hub's addresses."""

import socket

import pytest

import asmil
from asmil.runs.config import resolve
from asmil.training.run import train_run
from hub_stand_in import hub_stand_in

TOKEN = "hf_of_a_test"
NAME = "my-lab/tumor"


@pytest.fixture(scope="module")
def run(small_cohort, tmp_path_factory):
    cohort = asmil.load_cohort(small_cohort)
    config = resolve("mean_pooling", changes={"training": {"epochs": 1}})
    return train_run(cohort, tmp_path_factory.mktemp("hub") / "run", config).path


@pytest.fixture
def at(monkeypatch):
    """Lets huggingface_hub speak to another address, as the variable HF_ENDPOINT does when it is imported."""
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")

    def use(address):
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, address, 1)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "ENDPOINT", address)

    return use


def test_a_run_is_uploaded_and_comes_back(run, at, tmp_path):
    bundle = asmil.load_run(run).save_pretrained(tmp_path / "bundle")
    with hub_stand_in(TOKEN) as hub:
        at(hub.address)
        commit = asmil.load_run(run).push_to_hub(NAME, token=TOKEN)
        assert commit == f"{hub.address}/{NAME}/commit/{hub.commit(NAME)}"
        assert set(hub.repositories[NAME]) - {".gitattributes"} == {
            path.relative_to(bundle).as_posix() for path in bundle.rglob("*") if path.is_file()
        }
        assert "public" not in str(hub.created)
        there = asmil.TrainedRun.from_pretrained(NAME, token=TOKEN, cache_dir=tmp_path / "cache")
        assert there.classes == asmil.load_run(run).classes
        with pytest.raises(asmil.AsmilError, match="my-lab/other"):
            asmil.TrainedRun.from_pretrained("my-lab/other", token=TOKEN, cache_dir=tmp_path / "cache")
        with pytest.raises(asmil.AsmilError, match=NAME):
            asmil.load_run(run).push_to_hub(NAME, token="hf_wrong")
        del hub.repositories[NAME]["bundle.json"]
        with pytest.raises(asmil.AsmilError, match=r"bundle\.json"):
            asmil.TrainedRun.from_pretrained(NAME, token=TOKEN, cache_dir=tmp_path / "other_cache")
    # the hub is gone, the cache is not
    offline = {"cache_dir": tmp_path / "cache", "local_files_only": True}
    assert asmil.TrainedRun.from_pretrained(NAME, **offline).path == there.path
    for name in ("config.yaml", "fold-0/seed-0/checkpoints/best.safetensors"):
        assert (there.path / name).read_bytes() == (bundle / name).read_bytes()


def test_a_hub_that_does_not_answer_is_one_sentence(run, at, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens
        at(f"http://127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(asmil.AsmilError, match=NAME) as downloading:
            asmil.TrainedRun.from_pretrained(NAME, token=TOKEN, cache_dir=tmp_path)
        with pytest.raises(asmil.AsmilError, match=NAME) as uploading:
            asmil.load_run(run).push_to_hub(NAME, token=TOKEN)
    assert all(str(error.value).count("\n") == 0 for error in (downloading, uploading))
