"""What results were made from: when it counts as the same, and what is said if it is not."""

from __future__ import annotations

import os
import shutil

import pytest

from asmil.errors import AsmilError
from asmil.settings import made_from
from asmil.settings.made_from import (
    BLOCK,
    BLOCKS,
    SAMPLED_ABOVE,
    DoneBefore,
    MadeFrom,
    Record,
    RecordFile,
    file_content,
    sampled_sha256,
)
from asmil.version import __version__


def test_a_copy_with_another_date_is_the_same_and_another_content_is_not(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"one")
    record = MadeFrom(contents={"weights": file_content(path)}).record()
    shutil.copy(path, tmp_path / "b.bin")
    os.utime(tmp_path / "b.bin", (1, 1))
    assert MadeFrom(contents={"weights": file_content(tmp_path / "b.bin")}).differences(record) == []
    state = path.stat()
    path.write_bytes(b"two")
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))  # as archives do, which keep dates
    (told,) = MadeFrom(contents={"weights": file_content(path)}).differences(record)
    assert told.startswith("weights")


def test_an_unchanged_file_is_not_read_again(tmp_path, monkeypatch):
    path = tmp_path / "a.bin"
    path.write_bytes(b"one")
    record = MadeFrom(contents={"weights": file_content(path)}).record()
    monkeypatch.setattr(made_from, "sha256", None)
    monkeypatch.setattr(made_from.hashlib, "file_digest", None)
    assert MadeFrom(contents={"weights": file_content(path)}).differences(record) == []


def test_a_large_file_is_sampled_from_its_first_byte_to_its_last(tmp_path):
    path, size = tmp_path / "slide.tif", SAMPLED_ABOVE + 10 * BLOCK
    with path.open("wb") as file:
        file.truncate(size)
    before = file_content(path, checksum=sampled_sha256).checksum
    for place in (0, (size - BLOCK) * 32 // (BLOCKS - 1), size - 1):
        with path.open("r+b") as file:
            file.seek(place)
            file.write(b"x")
        after = file_content(path, checksum=sampled_sha256).checksum
        assert after != before
        before = after


def test_values_are_named_with_what_they_were_and_are():
    record = MadeFrom({"folds": 1, "grid": (1, 2), "sha": "a" * 64}).record()
    assert MadeFrom({"folds": 1, "grid": [1, 2], "sha": "a" * 64}).differences(record) == []
    told = MadeFrom({"folds": 3, "grid": [1, 2], "sha": "b" * 64, "new": True}).differences(record)
    assert len(told) == 3
    assert all(word in told[0] for word in ("folds", "1", "3"))
    assert told[1].startswith("sha")
    assert "b" * 64 not in told[1]
    assert told[2].startswith("new")


def test_another_version_alone_is_noted_and_never_stops(tmp_path):
    for again in (False, True):
        done = DoneBefore(again)
        assert done.keeps("a", Record(asmil="0.0.1", values={"x": 1}), MadeFrom({"x": 1}))
        assert done.keeps("b", MadeFrom({"x": 1}).record(), MadeFrom({"x": 1}))
        done.refuse(tmp_path)
        (note,) = done.notes
        assert all(word in note for word in ("0.0.1", __version__, "a"))


def test_results_are_grouped_by_what_differs_and_unknown_ones_are_refused(tmp_path):
    done = DoneBefore()
    for number in range(9):
        done.keeps(f"slide-{number}", Record(values={"x": 1}), MadeFrom({"x": 2}))
    done.keeps("old", None, MadeFrom({"x": 2}))
    with pytest.raises(AsmilError) as refused:
        done.refuse(tmp_path)
    told = str(refused.value)
    assert told.count("there 1, asked 2") == 1
    assert all(word in told for word in (str(tmp_path), "slide-0", "4 more", "old", "--again"))
    assert not DoneBefore(again=True).keeps("old", None, MadeFrom({"x": 2}))


def test_records_of_a_folder_are_read_back_and_a_damaged_file_is_named(tmp_path):
    records = RecordFile(tmp_path)
    assert records.read() == {}
    records.write({"a": MadeFrom({"x": 1}).record()})
    assert records.read() == {"a": MadeFrom({"x": 1}).record()}
    records.path.write_text("{")
    with pytest.raises(AsmilError, match=r"made_from\.json"):
        records.read()
