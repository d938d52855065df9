import errno
import os

import pytest
import torch
import yaml

from asmil.cohort.features import FeatureSource
from asmil.cohort.pack.files import INDEX
from asmil.cohort.pack.index import PACK_VERSION, read_index
from asmil.cohort.reader import open_features
from asmil.errors import AsmilError, did_you_mean
from asmil.files import discard_partials, replacing, write_json, write_text
from asmil.models import official
from asmil.runs.layout import RunLayout
from asmil.settings.config import merge, parse_assignments
from asmil.settings.documents import parse_yaml
from asmil.settings.folder_settings import claim_folder


def test_the_nearest_names_or_a_few_of_all():
    nearest = did_you_mean("traning", ["training", "model"])
    assert "'training'" in nearest
    assert "model" not in nearest
    assert did_you_mean("zzz", ["b", "a"]).endswith(": a, b")
    assert did_you_mean("zzz", [f"n{i:02}" for i in range(20)]).endswith("n11, ...")
    assert "zzz" not in did_you_mean("zzz", [])


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "new" / "a.txt"
    write_text(path, "old")
    with pytest.raises(ZeroDivisionError), replacing(path) as partial:
        partial.write_text(f"half {1 / 0}")
    assert path.read_text() == "old"
    write_json(path, {"é": 1})
    assert path.read_text() == '{\n "é": 1\n}\n'
    assert [p.name for p in path.parent.iterdir()] == ["a.txt"]


def test_a_full_disk_is_told_in_one_sentence(tmp_path):
    with pytest.raises(AsmilError, match=r"a\.txt: the disk"), replacing(tmp_path / "a.txt"):
        raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(PermissionError), replacing(tmp_path / "a.txt"):
        raise PermissionError("no")


def test_assignments_make_a_tree():
    assert parse_assignments(["a.b=1", "a.c=x", "d=null"]) == {"a": {"b": 1, "c": "x"}, "d": None}
    with pytest.raises(AsmilError, match="cannot be read"):
        parse_assignments(["a=[1"])
    assert merge({"a": 1}, {"a": {"b": 2}}) == {"a": {"b": 2}}


def test_a_process_that_ends_at_once_can_take_its_half_written_files_with_it(tmp_path):
    with replacing(tmp_path / "a.txt") as partial:
        partial.write_text("half")
        discard_partials()
        assert not partial.exists()
        partial.write_text("whole")
    assert (tmp_path / "a.txt").read_text() == "whole"
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10)
)


@pytest.mark.parametrize(
    "text",
    [BOMB, "&a [*a]", "[" * 5000, "- " * 5000, "a: 2024-99-99", "1" * 5000, "!!timestamp x", '"\\e[2J"', "x" * 600_000],
)
def test_settings_that_are_a_trap_are_refused_at_once(tmp_path, text):
    with pytest.raises(yaml.YAMLError):
        parse_yaml(text)
    with pytest.raises(AsmilError, match="--set"):
        parse_assignments([f"a={text}"])


def test_plain_settings_may_repeat_a_list(tmp_path):
    shared = [1, "two"]
    tree = {"a": shared, "b": {"c": shared}, "text": "line\nline"}
    assert parse_yaml(yaml.safe_dump(tree)) == tree
    assert parse_yaml("") is None


def test_traps_in_the_files_of_a_folder_are_one_sentence(tmp_path):
    (tmp_path / "config.yaml").write_text(BOMB)
    with pytest.raises(AsmilError, match=r"config\.yaml"):
        RunLayout(tmp_path).read_values()
    with pytest.raises(AsmilError, match=r"config\.yaml"):
        claim_folder(tmp_path / "config.yaml", {"a": 1}, "features")


def test_errors_are_value_errors_and_pass_where_value_errors_are_explained(tmp_path):
    assert issubclass(AsmilError, ValueError)
    torch.save(torch.zeros(2, 3), tmp_path / "slide.pt")
    with pytest.raises(AsmilError, match=r"^as it was$"), open_features(FeatureSource(tmp_path / "slide.pt")):
        raise AsmilError("as it was")
    write_json(tmp_path / INDEX, {"version": PACK_VERSION + 1})
    with pytest.raises(AsmilError, match=f"version {PACK_VERSION + 1} "):
        read_index(tmp_path)
    with pytest.raises(AsmilError, match="'mode'"):
        official.load({"head.0.weight": torch.zeros(4, 3), "head.2.weight": torch.zeros(2, 4)})


def test_what_killed_processes_left_is_removed_after_an_hour(tmp_path):
    from asmil.files import ABANDONED_SECONDS
    from asmil.settings.folder_settings import claim_folder

    (tmp_path / "qc").mkdir()
    old, young = tmp_path / "qc" / ".a.jpg.0123abcd.partial", tmp_path / ".b.h5.0123abcd.partial"
    for path in (old, young):
        path.touch()
    before = path.stat().st_mtime - 2 * ABANDONED_SECONDS
    os.utime(old, (before, before))
    claim_folder(tmp_path / "settings.yaml", {"a": 1}, "features")
    assert not old.exists()
    assert young.exists()
