"""Addresses name what they show: those of another cohort, a replaced slide or a run trained again fail."""

import shutil

import cv2
import numpy as np

from asmil.slides.pyramid_tiff import write_pyramid
from packed import unpack
from viewed_cohort import MPP, grid, train_run, write_slide_features


def mean_color(content: bytes) -> np.ndarray:
    return cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR_RGB).reshape(-1, 3).mean(axis=0)


def plain_slide(path, color) -> None:
    write_pyramid(path, np.full((600, 800, 3), color, dtype=np.uint8), MPP)


def rows_of(server) -> list[dict]:
    return server.get("/api/about").json()["slides"]


PICTURES = ("thumbnail.jpg", "tiles/0/0_0.jpg", "region.jpg?x=0&y=0&side=100&px=100")


def with_token(path: str, name: str, value: str) -> str:
    return f"{path}{'&' if '?' in path else '?'}{name}={value}"


def test_addresses_of_one_cohort_are_refused_by_another(client, tmp_path):
    for cohort, color in (("a", (250, 0, 0)), ("b", (0, 250, 0))):
        plain_slide(tmp_path / cohort / "slides" / "s.tif", color)
        write_slide_features(tmp_path / cohort / "features" / "s.h5", grid(4, 4), 0, 0, (800, 600))
        (tmp_path / cohort / "cohort.csv").write_text(f"slide,patient,label\ns,{cohort},x\n")
    first, second = (client(tmp_path / cohort / "cohort.csv") for cohort in "ab")
    (old,), (new,) = rows_of(first), rows_of(second)
    assert old["image"] != new["image"]
    assert old["version"] != new["version"]
    for path in PICTURES:
        assert second.get(with_token(f"/api/slides/0/{path}", "v", old["image"])).status_code == 409
        kept = second.get(with_token(f"/api/slides/0/{path}", "v", new["image"]))
        assert kept.headers["cache-control"].startswith("private")
        assert mean_color(kept.content).argmax() == 1
        assert second.get(f"/api/slides/0/{path}").headers["cache-control"] == "no-store"
    for path in ("", "/annotations", "/places"):
        assert second.get(f"/api/slides/0{path}?v={old['version']}").status_code == 409
        answer = second.get(f"/api/slides/0{path}?v={new['version']}")
        assert answer.status_code == 200
        assert answer.headers["cache-control"] == "no-store"
    assert second.get(f"/api/slides/7/thumbnail.jpg?v={old['image']}").status_code == 409
    assert second.get("/api/about").headers["cache-control"] == "no-store"


def test_a_slide_that_was_replaced_is_read_again(client, tmp_path):
    path = tmp_path / "slides" / "s.tif"
    plain_slide(path, (250, 0, 0))
    server = client(tmp_path / "slides")
    (old,) = rows_of(server)
    for picture in PICTURES:
        answer = server.get(with_token(f"/api/slides/0/{picture}", "v", old["image"]))
        assert mean_color(answer.content).argmax() == 0
    plain_slide(path, (0, 0, 250))
    (new,) = rows_of(server)
    for picture in PICTURES:
        assert server.get(with_token(f"/api/slides/0/{picture}", "v", old["image"])).status_code == 409
        answer = server.get(with_token(f"/api/slides/0/{picture}", "v", new["image"]))
        assert mean_color(answer.content).argmax() == 2


def test_the_folder_of_a_mirax_slide_counts(tmp_path):
    from asmil.viewer.content_token import file_state

    (tmp_path / "s").mkdir()
    for name in ("s.mrxs", "s/Data0000.dat"):
        (tmp_path / name).write_text("1")
    before = file_state(tmp_path / "s.mrxs")
    (tmp_path / "s" / "Data0000.dat").write_text("22")
    assert file_state(tmp_path / "s.mrxs") != before


def test_features_that_were_replaced_give_another_map(viewed, client, tmp_path):
    shutil.copytree(viewed / "features", tmp_path / "features")
    shutil.copy(viewed / "cohort.csv", tmp_path)
    train_run(tmp_path / "cohort.csv", tmp_path / "run", "abmil", epochs=1, record="none")
    server = client(tmp_path / "run")
    old = rows_of(server)[0]
    before = unpack(server.get(f"/api/slides/0/runs/0/map?v={old['version']}").content)["exact"]
    write_slide_features(tmp_path / "features" / "s0.h5", grid(11, 8), 0, 99, (1408, 1024))
    assert server.get(f"/api/slides/0/runs/0/map?v={old['version']}").status_code == 409
    after = unpack(server.get(f"/api/slides/0/runs/0/map?v={rows_of(server)[0]['version']}").content)["exact"]
    assert np.abs(after - before).max() > 1e-6


def test_a_run_that_was_trained_again_has_new_maps_and_predictions(viewed, client, tmp_path):
    import asmil

    run = train_run(viewed / "cohort.csv", tmp_path / "run", "abmil", epochs=1)
    server = client(run)
    maps, kinds = "/api/slides/0/runs/0/map", "/api/slides/0/runs/0/maps"
    about = server.get("/api/about").json()
    old = about["runs"][0]["version"]
    before = unpack(server.get(maps, params={"r": old}).content)["exact"]
    assert server.get("/api/alive").json()["runs"] == [old]
    shutil.rmtree(run)
    assert server.get(maps, params={"r": old}).status_code == 409
    assert server.get("/api/about").status_code == 200  # the list is shown while there is no run
    train_run(viewed / "cohort.csv", run, "abmil", epochs=4)
    for path in (maps, kinds, "/api/slides/0/runs/0/map.geojson", "/api/slides/0/places"):
        params = {"r": old, "run": "0", "moment": "0", "threshold": "0"}
        assert server.get(path, params=params).status_code == 409
    again = server.get("/api/about").json()
    new = again["runs"][0]["version"]
    assert server.get("/api/alive").json()["runs"] == [new] != [old]
    assert [row["runs"] for row in again["slides"]] != [row["runs"] for row in about["slides"]]
    after = unpack(server.get(maps, params={"r": new}).content)["exact"]
    np.testing.assert_allclose(after, asmil.load_run(run).attention("s0").tile_map, rtol=1e-5)
    assert np.abs(after - before).max() > 1e-6


def test_a_run_that_was_trained_on_another_cohort_is_refused(viewed, client, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(viewed / "abmil", run)
    server = client(run)
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("cohort.csv", "another.csv"))
    refused = server.get("/api/slides/0/runs/0/map")
    assert refused.status_code == 422
    assert "run" in refused.json()["error"]


def test_a_training_in_progress_does_not_make_the_page_outdated(viewed, client, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(viewed / "asmil", run)
    unfinished = run / "fold-0" / "seed-1"
    (unfinished / "predictions.parquet").unlink()
    server = client(run)
    old = server.get("/api/alive").json()["runs"]
    for name in ("metrics.jsonl", "checkpoints/best.safetensors", "attention.h5"):
        (unfinished / name).touch()
    assert server.get("/api/alive").json()["runs"] == old
