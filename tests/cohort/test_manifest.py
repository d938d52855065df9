import h5py
import pandas as pd
import pytest

from asmil.cohort.manifest import Cohort, cohort_from_features, load_cohort
from asmil.errors import AsmilError
from feature_writers import grid, make_slides, tiles, write_clam, write_manifest, write_tensor


def touch_features(folder, names, suffix=".h5"):
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / f"{name}{suffix}").touch()


def write_csv(tmp_path, text):
    path = tmp_path / "cohort.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_names_and_labels_stay_text(tmp_path):
    touch_features(tmp_path / "features", ["007", "1e5", "NA"])
    path = write_csv(tmp_path, "slide,label,mpp,site\n007,0,0.25,x\n1e5,1,,\nNA,10,,\n")
    cohort = load_cohort(path)
    assert [slide.slide for slide in cohort] == ["007", "1e5", "NA"]
    assert [slide.patient for slide in cohort] == ["007", "1e5", "NA"]
    assert cohort.classes == ("0", "1", "10")
    assert [cohort.target(slide) for slide in cohort] == [0, 1, 2]
    assert cohort.target("NA") == 2
    assert (cohort["007"].mpp, cohort["007"].site, cohort["1e5"].mpp) == (0.25, "x", None)
    assert cohort["007"].source.path == tmp_path / "features" / "007.h5"


def test_classes_sort_as_numbers_only_if_all_are(tmp_path):
    touch_features(tmp_path / "features", "abc")
    numbers = load_cohort(write_csv(tmp_path, "slide,label\na,10\nb,9\nc,-1\n"))
    assert numbers.classes == ("-1", "9", "10")
    words = load_cohort(write_csv(tmp_path, "slide,label\na,10\nb,9\nc,x\n"))
    assert words.classes == ("10", "9", "x")


def test_part_of_a_cohort_may_keep_the_classes_of_the_whole(tmp_path):
    touch_features(tmp_path / "features", "ab")
    cohort = load_cohort(write_csv(tmp_path, "slide,label\na,x\nb,y\n"))
    part = Cohort(cohort.path, cohort.slides[1:], cohort.classes)
    assert part.target("b") == 1


def test_parquet_integers_with_gaps_do_not_become_floats(tmp_path):
    touch_features(tmp_path / "features", "ab")
    path = tmp_path / "cohort.parquet"
    pd.DataFrame({"slide": ["a", "b"], "label": [1.0, 0.0], "fold": [0, 1]}).to_parquet(path)
    cohort = load_cohort(path)
    assert cohort.classes == ("0", "1")
    assert cohort["b"].fold == 1


def test_windows_bom_and_blanks_are_no_part_of_names(tmp_path):
    touch_features(tmp_path / "features", ["a"])
    (tmp_path / "cohort.csv").write_bytes("\ufeffslide, label\na , x\n".encode())
    assert load_cohort(tmp_path / "cohort.csv")["a"].label == "x"


def test_files_are_found_in_the_order_of_preference(tmp_path):
    place = tmp_path / "elsewhere"
    touch_features(place, ["a"])
    touch_features(place, ["a", "b"], ".pt")
    touch_features(place / "h5_files", ["b", "c"])
    touch_features(place / "pt_files", ["c", "d"], ".pt")
    path = write_csv(tmp_path, "slide,label\na,0\nb,1\nc,0\nd,1\n")
    found = [str(slide.source.path.relative_to(place)) for slide in load_cohort(path, place)]
    assert found == ["a.h5", "b.pt", "h5_files/c.h5", "pt_files/d.pt"]


def test_features_column_is_relative_to_the_manifest(tmp_path):
    touch_features(tmp_path / "x", ["one", "cohort"])
    touch_features(tmp_path / "features", ["c"])
    absolute = tmp_path / "x" / "one.h5"
    path = write_csv(tmp_path, f"slide,label,features\na,0,{absolute}\nb,1,x/cohort.h5::b\nc,1,\n")
    cohort = load_cohort(path)
    assert cohort["a"].source.path == absolute
    assert str(cohort["b"].source) == f"{tmp_path / 'x' / 'cohort.h5'}::b"
    assert cohort["c"].source.path.name == "c.h5"


def test_one_file_may_hold_the_whole_cohort(tmp_path):
    with h5py.File(tmp_path / "all.h5", "w") as file:
        for name in "ab":
            file[f"{name}/feat"] = tiles()
    path = write_csv(tmp_path, "slide,label\na,0\nb,1\n")
    assert load_cohort(path, tmp_path / "all.h5")["b"].source.group == "b"
    assert [slide.slide for slide in cohort_from_features(tmp_path / "all.h5")] == ["a", "b"]
    write_clam(tmp_path / "single.h5", tiles(), grid())
    with pytest.raises(AsmilError, match="group per slide"):
        load_cohort(path, tmp_path / "single.h5")


def test_labels_are_optional_for_prediction(tmp_path):
    touch_features(tmp_path / "features", "ab")
    cohort = load_cohort(write_csv(tmp_path, "slide\na\nb\n"), kind=None)
    assert cohort.classes == ()
    with pytest.raises(AsmilError, match=r"slide 'a'.*no label"):
        cohort.target("a")


def test_a_folder_is_a_cohort_for_prediction(tmp_path):
    make_slides(tmp_path, 3)
    write_tensor(tmp_path / "features" / "t.pt", tiles())
    touch_features(tmp_path / "features", ["._s00", ".s00.h5.17"])
    cohort = cohort_from_features(tmp_path / "features")
    assert [slide.slide for slide in cohort] == ["s00", "s01", "s02", "t"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(AsmilError, match="no feature file"):
        cohort_from_features(tmp_path / "empty")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("slide,labels\na,0\n", "'label'.*--columns label=labels"),
        ("slide,label,spilt\na,0,p\n", "'spilt'.*--columns split=spilt"),
        ("slide,diagnosis\na,0\n", "'label'.*'diagnosis'"),
        ("slide|label\na|0\n", "column 'slide'"),
        ("slide,label\n", "no rows"),
        ("", "is empty"),
        ("slide,label\na,0,x,y\n", "cells"),
        ("slide,label\na,0\na,1\n", r"slide 'a': .*\(2, 3\)"),
        ("slide,label\na,\n", "slide 'a': .*label"),
        ("slide,label\n,0\na,1\n", "'slide'.*line 2"),
        ("slide,label,split\na,0,training\n", "'training'.*'train'"),
        ("slide,label,fold\na,0,one\n", "fold 'one'"),
        ("slide,label,fold\na,0,1\nb,0,2\n", "'1', '2'"),
        ("slide,label,fold,split\na,0,1,train\n", "both filled"),
        ("slide,label,mpp\na,0,-1\n", "mpp '-1'"),
    ],
)
def test_mistakes_in_the_table_are_named(tmp_path, text, message):
    touch_features(tmp_path / "features", "ab")
    with pytest.raises(AsmilError, match=message):
        load_cohort(write_csv(tmp_path, text))


def test_other_columns_are_allowed(tmp_path):
    touch_features(tmp_path / "features", "a")
    path = write_csv(tmp_path, "slide,label,age,stage,size,time,event,label_2\na,0,1,1,1,1,1,1\n")
    assert len(load_cohort(path)) == 1


def test_one_patient_may_have_slides_of_two_labels(tmp_path):
    touch_features(tmp_path / "features", "ab")
    cohort = load_cohort(write_csv(tmp_path, "slide,patient,label\na,p,0\nb,p,1\n"))
    assert cohort.classes == ("0", "1")


def test_missing_files_are_listed_with_the_nearest(tmp_path):
    touch_features(tmp_path / "features", ["slide_1"])
    rows = "".join(f"slide-{number},0\n" for number in range(1, 9))
    with pytest.raises(AsmilError) as caught:
        load_cohort(write_csv(tmp_path, "slide,label\n" + rows))
    message = str(caught.value)
    assert message.count("\n") == 0
    assert "8 slides ('slide-1'," in message
    assert "and 3 more" in message
    assert str(tmp_path / "features") in message
    assert "'slide_1'" in message


def test_missing_file_of_the_column_and_missing_folder(tmp_path):
    touch_features(tmp_path / "x", ["abc"])
    with pytest.raises(AsmilError, match=r"abd.h5.*'abc.h5'"):
        load_cohort(write_csv(tmp_path, "slide,label,features\na,0,x/abd.h5\n"))
    with pytest.raises(AsmilError, match="folder"):
        load_cohort(write_csv(tmp_path, "slide,label\na,0\nb,1\n"))


def test_a_manifest_that_is_no_table(tmp_path):
    with pytest.raises(AsmilError, match="does not exist"):
        load_cohort(tmp_path / "none.csv")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(AsmilError, match=r"bad.parquet"):
        load_cohort(tmp_path / "bad.parquet")
    (tmp_path / "binary.csv").write_bytes(bytes(range(129, 160)))
    with pytest.raises(AsmilError, match=r"binary\.csv"):
        load_cohort(tmp_path / "binary.csv")


def test_round_trip_of_a_written_cohort(tmp_path):
    slides = make_slides(tmp_path, 4)
    cohort = load_cohort(write_manifest(tmp_path, slides))
    assert list(cohort) == slides


@pytest.mark.parametrize("column", ["slide", "patient"])
@pytest.mark.parametrize("name", ["../../x", "/x", "a\\b", "=1", "a\x1b[2Jb"])
def test_names_that_leave_their_folder_are_refused(tmp_path, column, name):
    touch_features(tmp_path / "features", ["a"])
    row = {"slide": "a", "patient": "p", "label": "0", "features": "features/a.h5"} | {column: name}
    pd.DataFrame([row]).to_csv(tmp_path / "cohort.csv", index=False)
    for kind in ("classification", None):
        with pytest.raises(AsmilError) as caught:
            load_cohort(tmp_path / "cohort.csv", kind=kind)
        assert column in str(caught.value)
        assert "\x1b" not in str(caught.value)


def test_groups_and_files_with_such_names_are_refused(tmp_path):
    touch_features(tmp_path / "features", ["=a"])
    with pytest.raises(AsmilError, match="=a"):
        cohort_from_features(tmp_path / "features")
    with h5py.File(tmp_path / "cohort.h5", "w") as file:
        file.create_group("..").create_dataset("feat", data=tiles())
    with pytest.raises(AsmilError, match=r"\.\."):
        cohort_from_features(tmp_path / "cohort.h5")


@pytest.mark.parametrize(
    ("column", "first", "second"),
    [
        ("patient", "p1", "P1"),
        ("patient", "M\u00fcller", "Mu\u0308ller"),
        ("patient", "p1", "p1\u200d"),
        ("label", "tumor", "Tumor"),
        ("slide", "a", "A"),
        ("site", "x y", "x  y"),
    ],
)
def test_two_spellings_of_one_name_are_refused(tmp_path, column, first, second):
    touch_features(tmp_path / "features", "abA")
    rows = [{"slide": "a", "label": "0", "patient": "p"}, {"slide": "b", "label": "1", "patient": "q"}]
    rows = [row | {column: name} for row, name in zip(rows, (first, second), strict=True)]
    pd.DataFrame(rows).to_csv(tmp_path / "cohort.csv", index=False)
    with pytest.raises(AsmilError) as caught:
        load_cohort(tmp_path / "cohort.csv")
    assert column in str(caught.value)
    assert all(name in str(caught.value) or ascii(name) in str(caught.value) for name in (first, second))


def test_labels_of_a_multi_label_cell_are_names_of_their_own(tmp_path):
    touch_features(tmp_path / "features", "ab")
    path = write_csv(tmp_path, "slide,label\na,x;y\nb,Y\n")
    with pytest.raises(AsmilError, match="'Y' and 'y'"):
        load_cohort(path, kind="multilabel")
    path = write_csv(tmp_path, "slide,label\na,1e5\nb,1E5\n")
    assert len(load_cohort(path, kind="regression")) == 2


def test_numbers_of_any_length_end_in_one_sentence(tmp_path):
    touch_features(tmp_path / "features", "ab")
    many = "9" * 5000
    with pytest.raises(AsmilError, match="fold"):
        load_cohort(write_csv(tmp_path, f"slide,label,fold\na,0,{many}\nb,1,1\n"))
    assert load_cohort(write_csv(tmp_path, f"slide,label\na,{many}\nb,1\n")).classes == ("1", many)
    with pytest.raises(AsmilError, match="1_0"):
        load_cohort(write_csv(tmp_path, "slide,label\na,1_0\nb,1\n"), kind="regression")


def found_in(tmp_path, cohort):
    return [slide.source.path.relative_to(tmp_path).as_posix() for slide in cohort]


def test_names_with_the_ending_of_a_file_find_their_features(tmp_path):
    touch_features(tmp_path / "features", ["a", "b.svs", "b"])
    cohort = load_cohort(write_csv(tmp_path, "slide,label\na.svs,0\nb.svs,1\n"))
    assert [slide.slide for slide in cohort] == ["a.svs", "b.svs"]
    assert found_in(tmp_path, cohort) == ["features/a.h5", "features/b.svs.h5"]


def test_the_job_folder_of_trident_is_searched(tmp_path):
    job = tmp_path / "job" / "20x_256px_0px_overlap"
    touch_features(job / "features_uni_v1", "ab")
    touch_features(job / "slide_features_titan", "ab")
    touch_features(job / "patches", ["a_patches", "a", "b"])
    path = write_csv(tmp_path, "slide,label\na,0\nb.svs,1\n")
    inside = "job/20x_256px_0px_overlap/features_uni_v1/"
    assert found_in(tmp_path, load_cohort(path, tmp_path / "job")) == [f"{inside}a.h5", f"{inside}b.h5"]
    touch_features(job / "features_conch", "ab")
    with pytest.raises(AsmilError) as caught:
        load_cohort(path, tmp_path / "job")
    assert all(word in str(caught.value) for word in ("features_uni_v1", "features_conch", "'a'", "--features"))


def test_the_nested_folders_of_stamp_are_searched(tmp_path):
    place = tmp_path / "features" / "uni-abc123"
    touch_features(place / "x", ["a", "c"])
    touch_features(place / "y", ["a", "b"])
    (place / "y" / "loop").symlink_to(place)
    path = write_csv(tmp_path, "FILENAME,label\nx/a.h5,0\ny/a.h5,1\nb.h5,0\nc.h5,1\n")
    cohort = load_cohort(path)
    assert [slide.slide for slide in cohort] == ["x/a", "y/a", "b", "c"]
    assert [name.removeprefix("features/uni-abc123/") for name in found_in(tmp_path, cohort)] == [
        *("x/a.h5", "y/a.h5", "y/b.h5", "x/c.h5")
    ]
    with pytest.raises(AsmilError, match=r"'a'.*/x.*/y"):
        load_cohort(write_csv(tmp_path, "slide,label\na,0\nb,1\n"))


def test_a_folder_in_the_place_of_a_feature_file_is_told_to_be_one(tmp_path):
    (tmp_path / "a.h5").mkdir()
    path = write_csv(tmp_path, "slide,label,features\na,0,a.h5\n")
    with pytest.raises(AsmilError, match=r"folder.*a\.h5"):
        load_cohort(path)


def test_files_named_with_other_spaces_are_found(tmp_path):
    touch_features(tmp_path / "features", ["a\u00a01", "b 1"])
    path = write_csv(tmp_path, "slide,label\u00a0\na\u00a01,x\u00a0y\nb\u00a01,x y\n")
    cohort = load_cohort(path)
    assert [slide.slide for slide in cohort] == ["a 1", "b 1"]
    assert cohort.classes == ("x y",)
    assert cohort["a 1"].source.path.name == "a\u00a01.h5"
