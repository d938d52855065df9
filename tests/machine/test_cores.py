"""Cores: those of the machine, within the affinity of the process and the quotas of its control groups."""

import os

import pytest

from asmil.machine import cores


@pytest.fixture
def groups(tmp_path, monkeypatch):
    monkeypatch.setattr(cores, "GROUPS", tmp_path / "groups")
    monkeypatch.setattr(cores, "MEMBERSHIP", tmp_path / "membership")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(16)), raising=False)
    monkeypatch.delenv(cores.THREADS, raising=False)

    def member(line, **files):
        (tmp_path / "membership").write_text(line + "\n")
        for path, text in files.items():
            file = tmp_path / "groups" / path.replace("__", "/").replace("_DOT_", ".")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)

    return member


@pytest.mark.parametrize(
    ("line", "files", "expected"),
    [
        ("0::/", {}, 16),
        ("0::/job", {"job__cpu_DOT_max": "max 100000"}, 16),
        ("0::/job", {"job__cpu_DOT_max": "250000 100000"}, 3),
        ("0::/job/step", {"job__cpu_DOT_max": "200000 100000", "job__step__cpu_DOT_max": "max 100000"}, 2),
        ("0::/job", {"job__cpu_DOT_max": "50000 100000"}, 1),
        ("1:cpu:/job", {"cpu__job__cpu_DOT_cfs_quota_us": "400000", "cpu__job__cpu_DOT_cfs_period_us": "100000"}, 4),
        ("1:cpu:/", {"cpu__cpu_DOT_cfs_quota_us": "-1", "cpu__cpu_DOT_cfs_period_us": "100000"}, 16),
        ("1:memory:/job", {"memory__job__cpu_DOT_max": "100000 100000"}, 16),
    ],
)
def test_quotas_of_containers_count(groups, line, files, expected):
    groups(line, **files)
    assert cores.usable_cores() == expected


def test_hyper_threads_of_a_core_count_once(groups, tmp_path, monkeypatch):
    groups("0::/")
    monkeypatch.setattr(cores, "CPUS", tmp_path / "cpu")
    for cpu in range(12):  # the topology of the others is unknown
        file = tmp_path / "cpu" / f"cpu{cpu}" / "topology" / "thread_siblings_list"
        file.parent.mkdir(parents=True)
        file.write_text(f"{cpu % 6},{cpu % 6 + 6}\n")
    assert cores.physical_cores() == 6 + 4
    groups("0::/", cpu_DOT_max="300000 100000")
    assert cores.physical_cores() == 3


def test_torch_gets_the_quota_unless_threads_are_given(groups, monkeypatch):
    groups("0::/job", job__cpu_DOT_max="max 100000")
    cores.respect_quota()
    assert cores.THREADS not in os.environ
    groups("0::/job", job__cpu_DOT_max="200000 100000")
    monkeypatch.setenv(cores.THREADS, "1")
    cores.respect_quota()
    assert os.environ[cores.THREADS] == "1"
    monkeypatch.delenv(cores.THREADS)
    cores.respect_quota()
    assert os.environ[cores.THREADS] == "2"
    monkeypatch.setenv(cores.THREADS, "2")  # so that it is removed at the end
