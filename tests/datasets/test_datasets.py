"""Public data sets: small files in the formats of their authors and in ours become the same cohorts."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.io import savemat

import asmil
from asmil.cohort.check import check_cohort
from asmil.cohort.features import read_bag
from asmil.cohort.manifest import load_cohort
from asmil.cohort.tile_truth import read_tile_truth
from asmil.datasets import DATASETS, colon
from asmil.datasets.cohort_plan import published_digests, verify
from asmil.datasets.downloads import Downloads
from asmil.errors import AsmilError
from shared_data import SHARED_DATA, shared_file

PATIENTS = [f"TCGA-{site}-{number:04d}" for number, site in enumerate(["05"] * 6 + ["A1"] * 6 + ["E2"] * 6)]
SLIDES = [f"{patient}-01Z-00-DX{number}.U" for patient in PATIENTS for number in (1, 2)]
OWNERS = [patient for patient in PATIENTS for _ in (1, 2)]
LABELS = [("IDC", "ILC")[number % 2] for number in range(len(PATIENTS)) for _ in (1, 2)]
ROLES = [("train", "train", "val", "test", "train")[number % 5] for number in range(len(SLIDES))]
RESULTS = "results_cvpr2022_class/tcga_brca_subtype/tcga_brca_subtype_mil_vits_tcga_pancancer_dino_1.00_none_s1"


def vectors() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(3)
    return {slide: draw.normal(size=(1 + number % 4, 8)).astype(np.float32) for number, slide in enumerate(SLIDES)}


@pytest.fixture
def clone(tmp_path):
    """As in the repositories of the authors."""
    folder = tmp_path / "clone"
    features = folder / "3" / "vit256mean_tcga_slide_embeddings"
    for path in (features, folder / "dataset_csv", folder / "5foldcv" / "tcga_brca", folder / RESULTS):
        path.mkdir(parents=True)
    for slide, values in vectors().items():
        torch.save(torch.from_numpy(values), features / f"{slide}.pt")
    columns = {"case_id": OWNERS, "slide_id": [f"{slide}.svs" for slide in SLIDES], "oncotree_code": LABELS}
    clinical = {"age": 50.0, "is_female": 1.0, "site": "5", "survival_months": 12.5, "censorship": 0.0, "TP53_mut": 1}
    table = pd.DataFrame({**columns, **clinical})
    other = table[:1].assign(case_id="TCGA-05-9999", slide_id="TCGA-05-9999-01Z-00-DX1.U.svs", oncotree_code="MDLC")
    pd.concat([table, other]).to_csv(folder / "dataset_csv" / "tcga_brca_subset.csv.zip")
    table.to_csv(folder / "dataset_csv" / "tcga_brca_all_clean.csv.zip")
    for fold in range(10):
        parts = {role: pd.Series([s for s, r in zip(SLIDES, ROLES, strict=True) if r == role]) for role in set(ROLES)}
        pd.DataFrame(parts).to_csv(folder / RESULTS / f"splits_{fold}.csv")
    pd.DataFrame({"folds": range(10), "test_auc": 0.8, "test_acc": 0.9}).to_csv(folder / RESULTS / "summary.csv")
    for fold in range(5):
        tested = pd.Series(PATIENTS[fold::5])
        others = pd.Series([patient for patient in PATIENTS if patient not in set(tested)])
        pd.DataFrame({"train": others, "val": tested}).to_csv(folder / "5foldcv" / "tcga_brca" / f"splits_{fold}.csv")
    return folder


@pytest.fixture
def ours(tmp_path):
    """As this project distributes them."""
    folder = tmp_path / "ours"
    folder.mkdir()
    bags = vectors()
    offsets = np.cumsum([0, *map(len, bags.values())])
    features = np.concatenate(list(bags.values())).astype(np.float16)
    np.savez(folder / "brca.npz", slides=np.array(SLIDES), offsets=offsets, features=features)
    columns = {"slide": SLIDES, "patient": OWNERS, "label": LABELS, "site": "5", "age": 50.0, "is_female": 1.0}
    pd.DataFrame({**columns, "TP53_mut": 1}).to_csv(folder / "brca_subtyping.csv", index=False)
    roles = [pd.DataFrame({"slide": SLIDES, "fold": fold, "role": ROLES}) for fold in range(10)]
    pd.concat(roles).to_csv(folder / "brca_official_splits.csv", index=False)
    published = {"task": "brca", "method": "mil", "share_of_training": 1.0, "fold": range(10)}
    pd.DataFrame({**published, "test_auc": 0.8, "test_acc": 0.9}).to_csv(
        folder / "published_subtyping.csv", index=False
    )
    columns = {"case_id": OWNERS, "slide_id": SLIDES, "site": "05", "oncotree_code": LABELS}
    survival = pd.DataFrame({**columns, "survival_months": 12.5, "event": 1})
    survival.to_csv(folder / "tcga_brca_survival.csv", index=False)
    folds = pd.DataFrame({"case_id": PATIENTS, "fold": [number % 5 for number in range(len(PATIENTS))]})
    folds.to_csv(folder / "tcga_brca_folds.csv", index=False)
    return folder


def make(name, source, out, *only, **more):
    options = {"only": only, "unverified": True, "progress": False, **more}
    report = asmil.make_dataset(name, source, out, **options)
    assert not report.failures, report.failures
    return [made.manifest.parent for made in report.made]


def test_a_clone_and_our_files_become_the_same_cohorts(clone, ours, tmp_path):
    cohorts = ("brca", "survival-brca")
    for theirs, mine in zip(
        make("tcga-hipt", clone, tmp_path / "a", *cohorts),
        make("tcga-hipt", ours, tmp_path / "b", *cohorts),
        strict=True,
    ):
        assert [path.name for path in sorted(theirs.rglob("*"))] == [path.name for path in sorted(mine.rglob("*"))]
        assert (theirs / "dataset.yaml").read_text() == (mine / "dataset.yaml").read_text()
        for path in sorted(mine.rglob("*.*")):
            if path.suffix == ".csv":
                pd.testing.assert_frame_equal(pd.read_csv(path), pd.read_csv(theirs / path.name), check_like=True)
            else:
                assert path.read_bytes() == (theirs / path.relative_to(mine)).read_bytes()
        kind = "survival" if "survival" in mine.name else "classification"
        report = check_cohort(mine / "cohort.csv", kind=kind)
        assert not [problem for problem in report.problems if problem.severity == "error"]
    assert set(pd.read_csv(tmp_path / "b" / "brca" / "cohort.csv", dtype=str)["site"]) == {"05", "A1", "E2"}
    assert "tcga-survival" in DATASETS
    (survival,) = make("tcga-survival", clone, tmp_path / "c", "brca")
    table = pd.read_csv(survival / "cohort.csv")
    assert list(table["event"].unique()) == [1]
    assert (table.groupby("patient")["fold"].nunique() == 1).all()
    assert not (survival / "features").exists()


def test_splits_come_as_printed_and_without_patients_in_two_roles(ours, tmp_path):
    (folder,) = make("tcga-hipt", ours, tmp_path / "out", "brca")
    printed, repaired = (pd.read_csv(folder / f"{name}-3.csv") for name in ("official", "repaired"))
    assert dict(zip(printed["slide"], printed["split"], strict=True)) == dict(zip(SLIDES, ROLES, strict=True))
    shared = printed.assign(patient=printed["slide"].str[:12]).groupby("patient")["split"].nunique()
    assert (shared > 1).any()
    assert (repaired.groupby("patient")["split"].nunique() == 1).all()
    tested = [set(table.loc[table["split"] == "test", "slide"]) for table in (printed, repaired)]
    assert tested[0] == tested[1]
    for name in ("official-3.csv", "repaired-3.csv"):
        splits = asmil.check(folder / name, progress=False)
        assert not [problem for problem in splits.problems if problem.severity == "error"]
    assert len(pd.read_csv(folder / "published.csv")) == 10
    folds = {name: pd.read_csv(folder / f"splits-{name}.csv") for name in ("official", "repaired", "quarter")}
    assert set(folds["official"].query("fold == 3")["slide"]) == set(printed["slide"])
    assert folds["repaired"].query("fold == 3")["role"].tolist() == repaired["split"].tolist()
    kept = [
        dict(tuple(table.query("fold == 3").groupby("role")["patient"]))
        for table in (folds["repaired"], folds["quarter"])
    ]
    assert set(kept[1]["test"]) == set(kept[0]["test"])
    assert set(kept[1]["train"]) < set(kept[0]["train"])


def test_other_files_than_the_published_are_refused_and_the_others_are_made(clone, tmp_path):
    report = asmil.make_dataset("tcga-hipt", clone, tmp_path / "out", progress=False)
    assert not report.made
    assert len(report.failures) == len(DATASETS["tcga-hipt"].cohorts)
    assert "--unverified" in report.failures[0]
    assert "tcga_blca_survival.csv" in next(line for line in report.failures if line.startswith("survival-blca"))
    report = asmil.make_dataset("tcga-hipt", clone, tmp_path / "out", unverified=True, progress=False)
    assert [made.name for made in report.made] == ["brca", "survival-brca"]
    with pytest.raises(AsmilError, match="brca"):
        asmil.make_dataset("tcga-hipt", clone, tmp_path / "out", only="brac")
    with pytest.raises(AsmilError, match="tcga-hipt"):
        asmil.make_dataset("tcga-hip", clone)
    with pytest.raises(AsmilError, match="nowhere"):
        asmil.make_dataset("tcga-hipt", tmp_path / "nowhere")


def test_pointers_and_damaged_files_are_named(clone, ours, tmp_path):
    pointer = next((clone / "3").rglob("*.pt"))
    pointer.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    (ours / "brca.npz").write_bytes(b"PK nothing")
    for source, name in ((clone, pointer.name), (ours, "brca.npz")):
        report = asmil.make_dataset("tcga-hipt", source, tmp_path, only="brca", unverified=True, progress=False)
        assert name in report.failures[0]


def test_the_same_command_resumes(ours, tmp_path):
    (folder,) = make("tcga-hipt", ours, tmp_path / "out", "brca")
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*.*")}
    lost = [folder / "features" / f"{SLIDES[4]}.npy", folder / "cohort.csv"]
    for path in lost:
        path.unlink()
    make("tcga-hipt", ours, tmp_path / "out", "brca")
    assert {path: path.read_bytes() for path in before} == {path: content for path, (content, _) in before.items()}
    kept = [path for path in before if path not in lost]
    assert all(path.stat().st_mtime_ns == before[path][1] for path in kept)


def test_what_was_not_downloaded_is_said(ours, tmp_path):
    (ours / "brca_official_splits.csv").unlink()
    report = asmil.make_dataset("tcga-hipt", ours, tmp_path / "out", only="brca", unverified=True, progress=False)
    assert "splits" in report.made[0].notes[0]


def write_colon(folder, images, as_mat):
    import cv2

    draw = np.random.default_rng(1)
    rows = []
    for number in range(1, images + 1):
        picture = draw.integers(0, 255, size=(100, 100, 3), dtype=np.uint8)
        parent = folder / (f"img{number}" if as_mat else "images")
        parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(parent / f"img{number}.{'bmp' if as_mat else 'png'}"), picture)
        for kind in colon.TYPES:
            points = draw.uniform(0, 100, size=(0 if kind == "epithelial" and number % 2 else 3, 2)).round(2)
            rows += [(f"img{number}", *point, kind) for point in points]
            if as_mat:
                savemat(parent / f"img{number}_{kind}.mat", {"detection": points})
    if not as_mat:
        pd.DataFrame(rows, columns=["image", "x", "y", "type"]).to_csv(folder / "nuclei.csv", index=False)
    return folder


def test_colon_nuclei_and_grid_have_the_truth_of_every_tile(tmp_path, monkeypatch):
    monkeypatch.setattr(colon, "IMAGES", 4)
    folders = make("colon", write_colon(tmp_path / "mat", 4, as_mat=True), tmp_path / "a")
    again = make("colon", write_colon(tmp_path / "csv", 4, as_mat=False), tmp_path / "b")
    for folder, other, tiles in zip(folders, again, ((9, 12), (4, 4)), strict=True):
        assert (folder / "dataset.yaml").read_text() == (other / "dataset.yaml").read_text()
        truth = read_tile_truth(folder / "tile_truth.parquet")
        for slide in load_cohort(folder / "cohort.csv").slides:
            rows = truth[truth["slide"] == slide.slide]
            bag = read_bag(slide.source, slide.slide)
            assert (bag.coords.numpy() == rows[["x", "y"]].to_numpy()).all()
            assert (rows[["x", "y"]] >= 0).all(axis=None)
            assert slide.label == ("epithelial" if rows["tumor"].any() else "negative")
            assert len(rows) == tiles[int(slide.label == "epithelial")]
    (tmp_path / "mat" / "img2" / "img2_others.mat").write_bytes(b"nothing")
    report = asmil.make_dataset("colon", tmp_path / "mat", tmp_path / "c", unverified=True, progress=False)
    assert "img2_others.mat" in report.failures[0]


def test_a_label_column_is_dropped_if_the_rest_is_the_published_set(tmp_path):
    with np.load(shared_file(SHARED_DATA / "classic" / "musk1.npz")) as file:
        arrays = dict(file)
    leaked = np.column_stack([arrays["features"], arrays["label"][arrays["bag"]]])
    np.savez(tmp_path / "musk1.npz", **{**arrays, "features": leaked})
    (folder,) = make("classic", tmp_path, tmp_path / "out", "musk1", unverified=False)
    assert np.load(next((folder / "features").iterdir())).shape[1] == arrays["features"].shape[1]


def test_the_digests_are_of_the_cohorts_of_the_catalog():
    assert set(published_digests()) == {f"{d.name}/{name}" for d in DATASETS.values() for name in d.cohorts}


@pytest.mark.parametrize("name", [f"{d.name}/{name}" for d in DATASETS.values() for name in d.cohorts])
def test_the_real_files_are_the_published_ones(name):
    folder = {"tcga-hipt": "", "tcga-survival": "survival"}.get(name.partition("/")[0], name.partition("/")[0])
    source = SHARED_DATA / folder
    if not source.is_dir():
        pytest.skip(f"{source} is not there; set ASMIL_DATA to the shared data folder")
    dataset, _, cohort = name.partition("/")
    verify(DATASETS[dataset].cohorts[cohort](Downloads(source)), name)
