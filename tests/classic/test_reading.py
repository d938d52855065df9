"""Every accepted form of a file gives the same set; what is wrong with a file is told in one sentence."""

import numpy as np
import pytest
import scipy.io
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from asmil.classic import find_sets, read_set, reading
from asmil.classic.bag_set import BagSet
from asmil.errors import AsmilError
from shared_data import SHARED_DATA, shared_file


def per_instance(one: BagSet) -> np.ndarray:
    return one.label[one.bag]


def write_npz(path, one):
    np.savez(path, features=one.features, bag=one.bag, label=one.label)


def write_npz_with_instance_labels(path, one):
    np.savez(path, features=one.features, bag=one.bag + 100, label=2 * per_instance(one) - 1)


def write_uci(path, one):
    rows = zip(one.bag, one.features, per_instance(one), strict=True)
    lines = [
        f"MOL-{bag},{bag}_{i}+1,{','.join(f'{value:.3f}' for value in row)},{label}."
        for i, (bag, row, label) in enumerate(rows)
    ]
    path.write_text("\n".join(lines) + "\n")


def write_numbers(path, one):
    rows = zip(per_instance(one), one.bag, one.features, strict=True)
    path.write_text("\n".join(f"{label},{bag}," + ",".join(f"{v:.3f}" for v in row) for label, bag, row in rows))


def write_header(path, one):
    lines = ["f1,bag,f2,Label,f3,instance,f4"]
    for label, bag, row in zip(per_instance(one), one.bag, one.features, strict=True):
        a, b, c, d = (f"{value:.3f}" for value in row)
        lines.append(f"{a}, m{bag}, {b}, {label}, {c}, 7, {d}")
    path.write_text("\n".join(lines))


def words(row):
    return " ".join(f"{index}:{value:.3f}" for index, value in enumerate(row, start=1) if value)


def write_qid(path, one):
    rows = zip(2 * per_instance(one) - 1, one.bag, one.features, strict=True)
    path.write_text("# made up\n" + "".join(f"{label:+d} qid:{bag} {words(row)} # x\n" for label, bag, row in rows))


def write_triples(path, one):
    rows = enumerate(zip(2 * per_instance(one) - 1, one.bag, one.features, strict=True))
    path.write_text("".join(f"{i}:{bag}:{label} {words(row)}\n" for i, (label, bag, row) in rows))


def write_mat_arrays(path, one):
    scipy.io.savemat(path, {"features": one.features, "bag": one.bag, "label": one.label})


def write_mat_sparse(path, one):
    labels = scipy.sparse.csc_matrix(2.0 * per_instance(one)[None] - 1)
    features = scipy.sparse.csc_matrix(one.features.astype(float))
    scipy.io.savemat(path, {"features": features, "bag_ids": one.bag[None] + 1, "labels": labels})


def write_mat_cells(path, one):
    cells = np.empty((one.n_bags, 2), dtype=object)
    for i, bag in enumerate(one.bags()):
        cells[i, 0], cells[i, 1] = bag, np.array([[one.label[i]]])
    scipy.io.savemat(path, {"data": cells})


def write_mat_prtools(path, one, lablist=("negative", "positive")):
    nlab = np.where(per_instance(one) == 1, lablist.index("positive") + 1, lablist.index("negative") + 1)
    dataset = {
        "data": one.features,
        "nlab": nlab[:, None],
        "lablist": np.array(lablist),
        "ident": {"milbag": one.bag[:, None]},
    }
    scipy.io.savemat(path, {"x": dataset})


def write_mat_prtools_positive_first(path, one):
    write_mat_prtools(path, one, ("positive", "negative"))


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("a.npz", write_npz),
        ("a.npz", write_npz_with_instance_labels),
        ("clean1.data", write_uci),
        ("a.csv", write_numbers),
        ("a.csv", write_header),
        ("a.svm", write_qid),
        ("a.txt", write_triples),
        ("a.data", write_triples),
        ("a.mat", write_mat_arrays),
        ("a.mat", write_mat_sparse),
        ("a.mat", write_mat_cells),
        ("a.mat", write_mat_prtools),
        ("a.mat", write_mat_prtools_positive_first),
    ],
)
def test_every_form_gives_the_same_set(toy, tmp_path, name, write):
    one = toy()
    write(tmp_path / name, one)
    read = read_set(tmp_path / name)
    assert np.array_equal(read.features, one.features)
    assert np.array_equal(read.bag, one.bag)
    assert np.array_equal(read.label, one.label)
    assert read.fingerprint() == one.fingerprint()
    assert read.name == (tmp_path / name).stem


def test_rows_of_a_bag_need_not_follow_each_other(toy, tmp_path):
    one = toy()
    order = np.random.default_rng(1).permutation(len(one.bag))
    np.savez(tmp_path / "a.npz", features=one.features[order], bag=one.bag[order], label=one.label)
    read = read_set(tmp_path / "a.npz")
    appearance = list(dict.fromkeys(one.bag[order].tolist()))
    assert np.array_equal(read.label, one.label[appearance])
    for bag, original in zip(read.bags(), appearance, strict=True):
        assert sorted(map(tuple, bag)) == sorted(map(tuple, one.bags()[original]))


def test_one_positive_instance_makes_a_bag_positive(tmp_path):
    (tmp_path / "a.csv").write_text("0,1,5\n1,1,6\n0,2,7\n0,2,8\n")
    assert read_set(tmp_path / "a.csv").label.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.csv", "1,1,5\n1,2,6\n", "2 bags"),
        ("a.csv", "3,1,5\n0,2,6\n", "its labels are"),
        ("a.csv", "1,1,5\n0,2,x\n", "row 2, column 2"),
        ("a.csv", "bag,label,f\n1,0,\n2,1,5\n", "row 2, column f"),
        ("a.csv", "bag,bag_id,label,f\n1,1,0,1\n2,2,1,5\n", "bag_id"),
        ("a.csv", "1,1\n0,2\n", "2 fields"),
        ("a.csv", "1,1\n0,2\n", "UCI"),
        ("a.csv", "", "a.csv"),
        ("a.csv", "1,1,5\n0,2,6,7\n", "a.csv"),
        ("a.csv", "1,1,inf\n0,2,6\n", "row 1, feature 1"),
        ("a.csv", "bag,label,f,f\n1,0,1,2\n2,1,5,6\n", "names f"),
        ("a.csv", "1,1,1e30\n0,2,6\n", "row 1, feature 1"),
        ("a.svm", "1 qid:1 1000000:2\n" + "0 qid:2 1:1\n" * 300, "301 instances of 1000000"),
        ("a.svm", "1 qid:1 1:2\n0 1:3\n", "line 2"),
        ("a.svm", "1 qid:1 0:2\n", "'0:2' in line 1"),
        ("a.svm", "1 qid:1 1:two\n", "'1:two' in line 1"),
        ("a.svm", "1 qid:1\n0 qid:2\n", "[2, 0]"),
        ("a.mat", "not matlab", ".mat"),
        ("a.npz", "not numpy", ".npz"),
        ("a.pkl", "", "end in .npz"),
    ],
)
def test_what_is_wrong_with_a_file_is_told(tmp_path, name, text, words):
    (tmp_path / name).write_text(text)
    with pytest.raises(AsmilError) as caught:
        read_set(tmp_path / name)
    assert words in str(caught.value)
    assert str(tmp_path / name) in str(caught.value)


def test_archives_that_lack_something_are_told(toy, tmp_path):
    one = toy()
    np.savez(tmp_path / "a.npz", features=one.features, bag=one.bag)
    with pytest.raises(AsmilError, match="label"):
        read_set(tmp_path / "a.npz")
    np.savez(tmp_path / "a.npz", features=one.features, bag=one.bag, label=one.label[:-1])
    with pytest.raises(AsmilError, match="fit neither"):
        read_set(tmp_path / "a.npz")
    np.savez(tmp_path / "a.npz", features=one.features[1:], bag=one.bag, label=one.label)
    with pytest.raises(AsmilError, match="fit"):
        read_set(tmp_path / "a.npz")
    scipy.io.savemat(tmp_path / "a.mat", {"other": [1]})
    with pytest.raises(AsmilError, match="other"):
        read_set(tmp_path / "a.mat")


def test_new_matlab_files_are_refused_with_the_way_out(tmp_path):
    header = b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM"
    (tmp_path / "a.mat").write_bytes(header + b"\x89HDF\r\n\x1a\n" + bytes(512))
    with pytest.raises(AsmilError, match=r"version 7\.3"):
        read_set(tmp_path / "a.mat")


def test_a_folder_gives_its_sets_and_no_two_of_one_name(toy, tmp_path):
    for name in ("b.npz", "a.npz"):
        write_npz(tmp_path / name, toy())
    (tmp_path / "README.txt").write_text("words")
    (tmp_path / "notes.md").write_text("words")
    assert [path.name for path in find_sets([tmp_path])] == ["a.npz", "b.npz"]
    assert len(find_sets([tmp_path, tmp_path / "a.npz"])) == 2
    write_uci(tmp_path / "a.data", toy())
    with pytest.raises(AsmilError, match="called a"):
        find_sets([tmp_path])
    with pytest.raises(AsmilError, match="folder"):
        find_sets([tmp_path / "c.npz"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(AsmilError, match=r"\.npz"):
        find_sets([tmp_path / "empty"])


@pytest.mark.parametrize(
    ("name", "bags", "positive", "instances", "features"),
    [
        ("classic/musk1", 92, 47, 476, 166),
        ("classic/musk2", 102, 39, 6598, 166),
        ("classic/fox", 200, 100, 1320, 230),
        ("classic/tiger", 200, 100, 1220, 230),
        ("classic/elephant", 200, 100, 1391, 230),
        ("ucsb/ucsb_breast", 58, 26, 2002, 708),
    ],
)
def test_real_sets_have_the_sizes_that_are_known(name, bags, positive, instances, features):
    one = read_set(shared_file(SHARED_DATA / f"{name}.npz"))
    assert (one.n_bags, int(one.label.sum())) == (bags, positive)
    assert one.features.shape == (instances, features)


def outcome(path):
    """The set in a file, or the sentence with which it is refused; all other errors pass."""
    try:
        return read_set(path)
    except AsmilError as error:
        return str(error)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("bag", np.array([b"x"] * 60, dtype="V3")),
        ("bag", np.full(60, np.nan)),
        ("bag", np.zeros(60, "M8[s]")),
        ("bag", np.zeros(0)),
        ("label", np.zeros(60, [("x", "f4")])),
        ("label", np.zeros(60, "c8")),
        ("features", np.zeros((60, 2), "M8[s]")),
        ("features", np.full((60, 2), 1e200)),
    ],
)
def test_arrays_of_other_types_are_named(tmp_path, name, values):
    arrays = {"features": np.ones((60, 2)), "bag": np.arange(60) // 6, "label": np.arange(60) // 6 % 2}
    np.savez(tmp_path / "a.npz", **(arrays | {name: values}))
    with pytest.raises(AsmilError, match=r"a\.npz"):
        read_set(tmp_path / "a.npz")


@settings(max_examples=150, deadline=None)
@given(st.booleans(), st.lists(st.tuples(st.floats(0, 0.9999), st.integers(0, 255)), min_size=1, max_size=6), st.data())
def test_damaged_archives_are_one_sentence(tmp_path_factory, compressed, changes, data):
    path = tmp_path_factory.mktemp("damaged") / "a.npz"
    save = np.savez_compressed if compressed else np.savez
    save(path, features=np.eye(8), bag=np.arange(8) // 2, label=np.arange(4) % 2)
    content = bytearray(path.read_bytes())
    for place, value in changes:
        content[int(place * len(content))] = value
    kept = int(data.draw(st.floats(0.5, 1)) * len(content)) if data.draw(st.booleans()) else len(content)
    path.write_bytes(content[:kept])
    told = outcome(path)
    assert not isinstance(told, str) or "a.npz" in told


def test_damaged_matlab_files_are_one_sentence(toy, tmp_path):
    draw = np.random.default_rng(0)
    for number, write in enumerate((write_mat_cells, write_mat_prtools, write_mat_arrays, write_mat_sparse)):
        path = tmp_path / f"{number}.mat"
        write(path, toy())
        content = bytearray(path.read_bytes())
        for place in draw.integers(128, len(content), 12):
            content[place] = draw.integers(0, 256)
        path.write_bytes(content)
        told = outcome(path)
        assert not isinstance(told, str) or path.name in told


@pytest.mark.parametrize("program", ["import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "while True: pass"])
def test_a_reader_that_crashes_or_hangs_is_one_sentence(toy, tmp_path, monkeypatch, program):
    (tmp_path / "reader.py").write_text(program)
    monkeypatch.setattr(reading, "READER", tmp_path / "reader.py")
    monkeypatch.setattr(reading, "TIMEOUT_S", 2.0)
    write_mat_arrays(tmp_path / "a.mat", toy())
    with pytest.raises(AsmilError, match=r"a\.mat"):
        read_set(tmp_path / "a.mat")
