"""Manifests as other tools, spreadsheets and people write them: read with a note of how, or refused with what to do."""

import openpyxl
import pandas as pd
import pytest

from asmil.cohort.check import check_cohort
from asmil.cohort.features import Provenance, write_features
from asmil.cohort.manifest import load_cohort, read_manifest
from asmil.cohort.manifest_import import import_manifest
from asmil.errors import AsmilError
from asmil.tables.columns import parse_mapping
from feature_writers import grid, make_slides, tiles, write_tensor

BARCODE = "TCGA-{}-A{:03d}-01Z-00-DX{}"


@pytest.fixture
def plain(tmp_path):
    """A cohort of twelve slides, and its table."""
    slides = make_slides(tmp_path, 12)
    return pd.DataFrame(
        [{"slide": one.slide, "patient": one.patient, "label": "ab"[n % 2]} for n, one in enumerate(slides)]
    )


def read_back(path, table, **options):
    cohort = load_cohort(path, path.parent / "features", **options)
    assert [slide.slide for slide in cohort] == list(table["slide"])
    assert [slide.patient for slide in cohort] == list(table["patient"])
    assert [slide.label for slide in cohort] == list(table["label"])
    return cohort


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "latin-1"])
def test_separators_and_encodings(tmp_path, plain, separator, encoding):
    table = plain.assign(label=plain["label"].replace({"a": "größer, dick", "b": "klein"}))
    path = tmp_path / "cohort.csv"
    table.to_csv(path, index=False, sep=separator, encoding=encoding)
    cohort = read_back(path, table)
    is_plain = separator == "," and encoding.startswith("utf-8")
    assert bool(cohort.notes) != is_plain
    assert any("größer" in note for note in cohort.notes) == (encoding == "latin-1")


def test_what_excel_and_german_computers_write(tmp_path, plain):
    path = tmp_path / "cohort.csv"
    path.write_text("sep=;\r\n" + plain.to_csv(index=False, sep=";").replace("\n", ";\r\n"), encoding="utf-8")
    read_back(path, plain)
    plain.assign(mpp="0,25").to_csv(path, index=False, sep=";")
    with pytest.raises(AsmilError, match=r"12 slides.*0,25.*point"):
        load_cohort(path)


def test_excel(tmp_path, plain):
    path = tmp_path / "cohort.xlsx"
    plain.assign(number=range(12), gap=[1.5, None] * 6).to_excel(path)
    assert read_back(path, plain).notes == ()
    book = openpyxl.load_workbook(path)
    book.create_sheet("notes").append(["only a title"])
    book.save(path)
    assert "Sheet1" in read_back(path, plain).notes[0]
    book["notes"].append(["and a row"])
    book.save(path)
    with pytest.raises(AsmilError, match=r"Sheet1.*notes"):
        load_cohort(path)
    content = path.read_bytes()
    for damaged in (b"", b"not a zip", content[:1000], content[:-200]):
        path.write_bytes(damaged)
        with pytest.raises(AsmilError, match=r"cohort\.xlsx"):
            load_cohort(path)
    (tmp_path / "old.xls").touch()
    with pytest.raises(AsmilError, match=r"old\.xls.*xlsx"):
        load_cohort(tmp_path / "old.xls")


def test_clam(tmp_path, plain):
    path = tmp_path / "tumor_subtyping.csv"
    plain.rename(columns={"patient": "case_id", "slide": "slide_id"})[["case_id", "slide_id", "label"]].to_csv(
        path, index=False
    )
    notes = read_back(path, plain).notes
    assert any("case_id" in note for note in notes)
    assert any("slide_id" in note for note in notes)


def test_columns_that_the_user_chooses(tmp_path, plain):
    path = tmp_path / "cohort.csv"
    plain.rename(columns={"label": "OncoTree Code"}).assign(label="x", case_nr=plain["patient"]).to_csv(
        path, index=False
    )
    cohort = read_back(path, plain, columns=parse_mapping("label=oncotree code, patient=case_nr"))
    assert cohort.columns == {"label": "oncotree code", "patient": "case_nr"}
    assert any("OncoTree Code" in note for note in cohort.notes)
    for mapping, named in [("label=oncotre", "OncoTree Code"), ("lable=x", "label"), ("label", "NAME=COLUMN")]:
        with pytest.raises(AsmilError, match=named):
            load_cohort(path, columns=parse_mapping(mapping))
    with pytest.raises(AsmilError, match="twice"):
        parse_mapping("label=a,label=b")


def test_slides_may_be_said_to_be_of_different_patients(tmp_path, plain):
    path = tmp_path / "cohort.csv"
    plain.rename(columns={"slide": "FILENAME", "patient": "case_nr"}).assign(
        FILENAME=plain["slide"] + ".svs", case_nr=[f"c{n // 2}" for n in range(12)]
    ).to_csv(path, index=False)
    with pytest.raises(AsmilError, match="--columns patient=case_nr"):
        load_cohort(path)
    read_back(path, plain.assign(patient=plain["slide"]), columns={"patient": "slide"})


def stamp_tables(tmp_path, plain):
    slides = tmp_path / "slide.csv"
    pd.DataFrame({"PATIENT": plain["patient"], "FILENAME": plain["slide"] + ".h5"}).to_csv(slides, index=False)
    clini = tmp_path / "clini.xlsx"
    pd.DataFrame({"PATIENT": plain["patient"], "isMSIH": plain["label"], "AGE": 60, "GENDER": "f"}).to_excel(
        clini, index=False
    )
    return slides, clini


def test_stamp(tmp_path, plain):
    slides, clini = stamp_tables(tmp_path, plain)
    for table in (slides, clini):
        with pytest.raises(AsmilError, match="import-manifest"):
            load_cohort(table, tmp_path / "features")
    with pytest.raises(AsmilError, match="isMSIH"):
        import_manifest(slides, clini)
    found = import_manifest(slides, clini, {"label": "isMSIH"})
    found.write(tmp_path / "cohort.csv")
    assert found.others == ("AGE", "GENDER")
    assert list(pd.read_csv(tmp_path / "cohort.csv")["AGE"]) == [60] * 12
    assert read_back(tmp_path / "cohort.csv", plain).notes == ()
    # the same column name in both tables, a patient that is missing, a patient with two outcomes
    table = pd.read_excel(clini)
    table.iloc[1:].to_excel(clini, index=False)
    with pytest.raises(AsmilError, match=r"slide 's00'.*p00"):
        import_manifest(slides, clini, {"label": "isMSIH"})
    assert import_manifest(slides, clini, {"label": "isMSIH"}, drop_missing=True).dropped == ("s00",)
    pd.concat([table, table.assign(isMSIH="c")]).to_excel(clini, index=False)
    with pytest.raises(AsmilError, match=r"p00.*label"):
        import_manifest(slides, clini, {"label": "isMSIH"})
    table.assign(PATIENT=table["PATIENT"].str.upper()).to_excel(clini, index=False)
    with pytest.raises(AsmilError, match=r"'p00' here and 'P00'"):
        import_manifest(slides, clini, {"label": "isMSIH"})


def gdc_slides(tmp_path):
    names = [f"{BARCODE.format('3C', n // 2, 1 + n % 2)}.{n:08X}-D8FB-45CF-B4BD-C6B76294C291" for n in range(12)]
    for n, name in enumerate(names):
        write_features(tmp_path / "features" / f"{name}.h5", tiles(n), grid(), Provenance(encoder="uni"))
    return names


def test_gdc_sample_sheet_and_clinical_table(tmp_path):
    names = gdc_slides(tmp_path)
    sheet = tmp_path / "gdc_sample_sheet.2026-11-16.tsv"
    pd.DataFrame(
        {
            "File ID": [f"0f{n:06d}-0000-4000-8000-000000000000" for n in range(12)],
            "File Name": [f"{name}.svs" for name in names],
            "Data Category": "Biospecimen",
            "Data Type": "Slide Image",
            "Project ID": ["TCGA-BRCA", "TCGA-BRCA", "TCGA-LUAD", "TCGA-LUAD"] * 3,
            "Case ID": [name[:12] for name in names],
            "Sample ID": [name[:16] for name in names],
            "Sample Type": "Primary Tumor",
        }
    ).to_csv(sheet, index=False, sep="\t")
    with pytest.raises(AsmilError, match="Project ID"):
        load_cohort(sheet)
    cohort = load_cohort(sheet, columns={"label": "Project ID"})
    assert cohort.classes == ("TCGA-BRCA", "TCGA-LUAD")
    assert len({slide.patient for slide in cohort}) == 6
    assert check_cohort(sheet, columns={"label": "Project ID"}).ok
    clinical = tmp_path / "clinical.tsv"
    pd.DataFrame(
        {
            "case_id": [f"{n:08d}-aaaa-4000-8000-000000000000" for n in range(6)],
            "case_submitter_id": sorted({name[:12] for name in names}),
            "ajcc_pathologic_stage": ["Stage I", "Stage II", "'--"] * 2,
        }
    ).to_csv(clinical, index=False, sep="\t")
    choice = {"label": "ajcc_pathologic_stage"}
    with pytest.raises(AsmilError, match="both"):
        import_manifest(sheet, clinical, {**choice, "patient": "case_id"})
    with pytest.raises(AsmilError, match=r"4 slides.*--drop-missing"):
        import_manifest(sheet, clinical, choice)
    found = import_manifest(sheet, clinical, choice, drop_missing=True)
    assert {row["label"] for row in found.rows} == {"Stage I", "Stage II"}
    assert len(found.dropped) == 4


def gdc_tables(tmp_path, prefix=""):
    """A sample sheet of twelve slides of six patients, and their clinical table: two rows each, 0, 2 and 4 dead."""
    names = gdc_slides(tmp_path)
    sheet, clinical = tmp_path / "sheet.tsv", tmp_path / "clinical.tsv"
    pd.DataFrame({"File Name": [f"{name}.svs" for name in names], "Case ID": [name[:12] for name in names]}).to_csv(
        sheet, index=False, sep="\t"
    )
    dead = [n % 2 == 0 for n in range(6)]
    table = pd.DataFrame(
        {
            "case_id": [f"{n:08d}-aaaa-4000-8000-000000000000" for n in range(6)],
            "case_submitter_id": sorted({name[:12] for name in names}),
            f"{prefix}vital_status": ["Dead" if one else "Alive" for one in dead],
            f"{prefix}days_to_death": [str(100 + n) if one else "'--" for n, one in enumerate(dead)],
            f"{prefix}days_to_last_follow_up": ["'--" if one else str(200 + n) for n, one in enumerate(dead)],
            "age_at_index": range(50, 56),
            "gender": ["female", "male"] * 3,
        }
    )
    both = pd.concat([table.assign(treatment="Radiation"), table.assign(treatment="Chemotherapy")])
    both.to_csv(clinical, index=False, sep="\t")
    return sheet, clinical, both


@pytest.mark.parametrize("prefix", ["", "demographic."])
def test_follow_up_of_the_gdc(tmp_path, asmil_here, prefix):
    sheet, clinical, _ = gdc_tables(tmp_path, prefix)
    out = tmp_path / "cohort.csv"
    done = asmil_here("import-manifest", sheet, "--patients", clinical, "--out", out)
    assert done.returncode == 0, done.stderr
    assert " days" in done.stdout
    assert "--task survival" in done.stdout
    cohort = load_cohort(out, kind="survival")
    assert cohort.time_unit == "days"
    by_patient = {slide.patient[-3:]: (slide.time, slide.event) for slide in cohort}
    assert by_patient == {f"{n:03d}": (200.0 + n, False) if n % 2 else (100.0 + n, True) for n in range(6)}
    kept = pd.read_csv(out, dtype=str)
    assert list(kept["age_at_index"][:3]) == ["50", "50", "51"]
    assert "gender" in kept
    assert "treatment" not in kept  # which differs between the rows of a patient
    assert "treatment" in done.stdout
    assert asmil_here("check", out, "--task", "survival").returncode == 0


def test_unknown_follow_up_is_missing_and_counted(tmp_path):
    sheet, clinical, table = gdc_tables(tmp_path)
    unknown = table["case_id"].str.startswith("00000001")
    table.loc[unknown, "vital_status"] = "Not Reported"
    table.loc[table["case_id"].str.startswith("00000002"), "days_to_death"] = "'--"
    table.to_csv(clinical, index=False, sep="\t")
    with pytest.raises(AsmilError, match=r"4 slides.*time.*--drop-missing"):
        import_manifest(sheet, clinical)
    found = import_manifest(sheet, clinical, drop_missing=True)
    assert len(found.dropped) == 4
    assert any("event" in note and "2 rows" in note and "Not Reported" in note for note in found.notes)
    # the deaths have their own column, whichever of the two is named
    for time in ("days_to_death", "days_to_last_follow_up"):
        again = import_manifest(sheet, clinical, {"time": time, "event": "vital_status"}, drop_missing=True)
        assert [(row["time"], row["event"]) for row in again.rows] == [
            (row["time"], row["event"]) for row in found.rows
        ]
    # with a label, follow-up is not an outcome
    assert len(import_manifest(sheet, clinical, {"label": "gender"}).rows) == 12


@pytest.mark.parametrize(
    ("words", "events"),
    [
        (("Dead", "Alive"), "10"),
        (("1:DECEASED", "0:LIVING"), "10"),
        (("censored", "event"), "01"),
        (("0", "1.0"), "01"),
    ],
)
def test_words_for_events(tmp_path, plain, words, events):
    path = tmp_path / "cohort.csv"
    plain.assign(time=range(12), event=list(words) * 6).to_csv(path, index=False)
    found = import_manifest(path)
    expected = [one == "1" for one in events] * 6
    found.write(tmp_path / "new.csv")
    for written in (path, tmp_path / "new.csv"):
        assert [slide.event for slide in load_cohort(written, kind="survival")] == expected
    plain.drop(columns="label").assign(time=range(12), event=["Dead", "Perhaps"] * 6).to_csv(path, index=False)
    for read in (import_manifest, lambda path: load_cohort(path, kind="survival")):
        with pytest.raises(AsmilError, match=r"6 slides.*Perhaps"):
            read(path)


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
@pytest.mark.parametrize(
    ("column", "value"),
    [("time", "inf"), ("time", "1e400"), ("time", "nan"), ("time", "-1"), ("mpp", "inf"), ("label", "-inf")],
)
def test_an_imported_manifest_has_finite_numbers(tmp_path, plain, suffix, column, value):
    path = tmp_path / f"table{suffix}"
    table = plain.assign(label=range(12), time=range(12), event=[0, 1] * 6, mpp=0.25).astype(str)
    table.loc[3, column] = value
    table.to_csv(path, index=False, sep="," if suffix == ".csv" else "\t")
    with pytest.raises(AsmilError, match=rf"s03.*{column}"):
        import_manifest(path)
    plain.assign(label=["Sup", "Inf"] * 6).to_csv(path, index=False)
    assert {row["label"] for row in import_manifest(path).rows} == {"Inf", "Sup"}


def test_two_sheets_of_one_workbook(tmp_path, plain, asmil_here):
    book = tmp_path / "book.xlsx"
    with pd.ExcelWriter(book) as writer:
        plain[["slide", "patient"]].to_excel(writer, sheet_name="slides", index=False)
        plain[["patient", "label"]].assign(sex="f").to_excel(writer, sheet_name="people", index=False)
    out = tmp_path / "cohort.csv"
    command = ("import-manifest", book, "--patients", book, "--out", out)
    refused = asmil_here(*command)
    assert refused.returncode == 1
    assert all(word in refused.stderr for word in ("slides", "people", "--sheet"))
    assert not out.exists()
    done = asmil_here(*command, "--sheet", "slides", "--patients-sheet", "people")
    assert done.returncode == 0, done.stderr
    read_back(out, plain)
    assert set(pd.read_csv(out)["sex"]) == {"f"}


def test_gdc_manifest_and_barcodes(tmp_path):
    names = gdc_slides(tmp_path)
    path = tmp_path / "gdc_manifest.txt"
    pd.DataFrame(
        {"id": range(12), "filename": [f"{name}.svs" for name in names], "md5": "x", "size": 1, "state": "released"}
    ).assign(label=["a", "a", "b", "b"] * 3).to_csv(path, index=False, sep="\t")
    with pytest.raises(AsmilError, match="patient=tcga-barcode"):
        load_cohort(path)
    cohort = load_cohort(path, columns={"patient": "tcga-barcode"})
    assert {slide.patient for slide in cohort} == {name[:12] for name in names}
    path.write_text(path.read_text() + "99\tother.svs\tx\t1\treleased\ta\n")
    with pytest.raises(AsmilError, match="other"):
        load_cohort(path, columns={"patient": "tcga-barcode"})


def test_mil_baseline(tmp_path):
    paths = [tmp_path / "pt_files" / f"20-{n:05d}-2.pt" for n in range(12)]
    for n, path in enumerate(paths):
        write_tensor(path, tiles(n))
    long, wide = tmp_path / "long.csv", tmp_path / "wide.csv"
    cases = [f"c{n}" for n in range(12)]
    pd.DataFrame({"case_id": cases, "slide_path": paths, "label": [0, 1] * 6}).to_csv(long, index=False)
    cohort = load_cohort(long)
    assert [slide.slide for slide in cohort] == [path.stem for path in paths]
    assert cohort.classes == ("0", "1")
    parts = {"train": paths[:6], "val": paths[6:9], "test": paths[9:]}
    columns = {}
    for part, chosen in parts.items():
        columns[f"{part}_slide_path"] = pd.Series(map(str, chosen))
        columns[f"{part}_label"] = pd.Series([n % 2 for n in range(len(chosen))])
    pd.DataFrame(columns).to_csv(wide, index=False)
    assert "1.0" in wide.read_text()
    cohort = load_cohort(wide)
    assert cohort.classes == ("0", "1")
    assert [slide.split for slide in cohort] == ["train"] * 6 + ["val"] * 3 + ["test"] * 3
    # its own five folds test on the slides that chose the epoch
    pd.DataFrame(columns | {"test_slide_path": columns["val_slide_path"]}).to_csv(wide, index=False)
    with pytest.raises(AsmilError, match="20-00006-2"):
        load_cohort(wide)
    # paths of another machine, and where the files are here
    moved = pd.DataFrame({"slide_path": [f"/data_sdd/lxt/{path.name}" for path in paths], "label": [0, 1] * 6})
    moved.to_csv(long, index=False)
    with pytest.raises(AsmilError, match="12 slides"):
        load_cohort(long)
    assert len(load_cohort(long, tmp_path / "pt_files")) == 12


@pytest.mark.parametrize("word", ["N/A", "NA", "nan", "-", "[Not Available]", "'--", "#N/A", "null", "?"])
def test_words_for_missing_values_are_no_class(tmp_path, plain, word):
    path = tmp_path / "cohort.csv"
    plain.assign(label=[word] * 3 + list(plain["label"][3:])).to_csv(path, index=False)
    with pytest.raises(AsmilError, match=r"3 slides \('s00', 's01', 's02'\)"):
        load_cohort(path)
    assert read_manifest(path)[0].classes == ("a", "b")
    found = import_manifest(path, drop_missing=True)
    assert found.dropped == ("s00", "s01", "s02")
    plain.assign(site=word, mpp=word).to_csv(path, index=False)
    cohort = load_cohort(path)
    assert {slide.site for slide in cohort} == {None}
    assert len(cohort.notes) == 2


def test_doubtful_words_are_classes_with_a_warning(tmp_path, plain):
    path = tmp_path / "cohort.csv"
    plain.assign(label=["unknown", "b"] * 6).to_csv(path, index=False)
    report = check_cohort(path)
    assert report.ok
    assert any("'unknown'" in problem.what for problem in report.problems)


@pytest.mark.parametrize(("one", "other"), [("small cell", "Small cell "), ("small-cell", "small_cell"), ("1", "1.0")])
def test_near_equal_classes_are_refused_with_both(tmp_path, plain, one, other):
    path = tmp_path / "cohort.csv"
    plain.assign(label=[one, other, "x"] * 4).to_csv(path, index=False)
    with pytest.raises(AsmilError) as caught:
        load_cohort(path)
    assert repr(one) in str(caught.value)
    assert repr(other.strip()) in str(caught.value)
    plain.assign(label=["HER2+", "HER2-"] * 6).to_csv(path, index=False)
    assert load_cohort(path).classes == ("HER2+", "HER2-")


def test_equal_problems_are_one_line(tmp_path, plain, asmil_here):
    for path in (tmp_path / "features").iterdir():
        if path.stem < "s10":
            path.write_bytes(path.read_bytes()[: 900 + int(path.stem[1:])])
    path = tmp_path / "cohort.csv"
    pd.concat([plain, plain.iloc[:8].assign(slide=[f"gone{n}" for n in range(8)])]).to_csv(path, index=False)
    done = asmil_here("check", path)
    assert done.returncode == 1
    lines = [line for line in done.stdout.splitlines() if line.startswith("error")]
    assert len(lines) == 2
    assert sum("8 slides" in line and str(tmp_path / "features") in line for line in lines) == 1
    assert sum("10 files" in line for line in lines) == 1
    assert sum(line.startswith("error") for line in asmil_here("check", path, "--list").stdout.splitlines()) == 18


def test_import_manifest_from_the_command_line(tmp_path, plain, asmil_here):
    slides, clini = stamp_tables(tmp_path, plain)
    out = tmp_path / "new" / "cohort.csv"
    out.parent.mkdir()
    done = asmil_here("import-manifest", slides, "--patients", clini, "--columns", "label=isMSIH", "--out", out)
    assert done.returncode == 0, done.stderr
    assert "isMSIH" in done.stdout
    assert "12 slides of 12 patients" in done.stdout
    assert asmil_here("check", out, "--features", tmp_path / "features").returncode == 0
    assert asmil_here("import-manifest", slides, "--out", slides).returncode == 1
    before = out.read_bytes()
    again = ("import-manifest", slides, "--patients", clini, "--columns", "label=isMSIH", "--out", out)
    assert out.name in asmil_here(*again).stderr
    assert asmil_here(*again, "--force").returncode == 0
    assert out.read_bytes() == before
