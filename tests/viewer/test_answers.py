"""What the server answers: the list, slides, tiles, maps, and why something cannot be shown."""

import io
import json

import cv2
import numpy as np

from asmil.cohort.features import Provenance, write_features
from asmil.evaluation.run_alarms import alarms_of_run
from asmil.explain.caveats import attention_finding
from asmil.explain.color_scale import average_weight, natural_scale
from asmil.slides.opening import open_slide
from asmil.viewer.collection import Places
from packed import unpack
from viewed_cohort import HEIGHT, TILE, WIDTH, drawn_slide, grid, train_run, write_slide_features


def decoded(content: bytes) -> np.ndarray:
    return cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR_RGB)


def slide_id(client, name: str) -> int:
    return next(row["id"] for row in client.get("/api/about").json()["slides"] if row["name"] == name)


def test_the_list_has_labels_patients_and_predictions(viewed, client):
    about = client(viewed / "asmil", viewed / "abmil").get("/api/about").json()
    assert all(row["site"] is None for row in about["slides"])
    assert [run["name"] for run in about["runs"]] == ["asmil", "abmil"]
    rows = {row["name"]: row for row in about["slides"]}
    assert rows["s3"]["patient"] == "p3"
    assert rows["s3"]["label"] == "tumor"
    assert rows["s3"]["annotated"]
    assert not rows["s11"]["image"]
    said = [run for row in rows.values() for run in row["runs"] if "prediction" in run]
    assert said
    assert all(run["prediction"] in ("normal", "tumor") and 0.5 <= run["value"] <= 1 for run in said)


def test_the_list_has_sites(viewed, client, tmp_path):
    (tmp_path / "cohort.csv").write_text("slide,patient,site\ns0,p0,Lyon\ns1,p1,\n")
    server = client(tmp_path / "cohort.csv", places=Places(slides=viewed / "slides"))
    assert [row["site"] for row in server.get("/api/about").json()["slides"]] == ["Lyon", None]


def test_tiles_are_the_pixels_of_the_slide(viewed, client):
    server = client(viewed / "cohort.csv")
    levels = server.get("/api/slides/0").json()["image"]["levels"]
    assert levels[0]["width"] == WIDTH
    with open_slide(viewed / "slides" / "s0.tif") as image:
        for level, about in enumerate(levels):
            column, row = about["across"] - 1, about["down"] - 1
            answer = server.get(f"/api/slides/0/tiles/{level}/{column}_{row}.jpg")
            assert answer.headers["content-type"] == "image/jpeg"
            if level >= len(image.level_sizes):
                continue
            x, y = column * about["tile_width"], row * about["tile_height"]
            width, height = about["width"] - x, about["height"] - y
            by = about["downsample"]
            expected = image.read(round(x * by[0]), round(y * by[1]), level, width, height)
            np.testing.assert_array_equal(decoded(answer.content)[:height, :width], expected)


def test_a_tile_is_kept_by_the_browser(viewed, client):
    server = client(viewed / "cohort.csv")
    address = f"/api/slides/0/tiles/0/0_0.jpg?v={server.get('/api/about').json()['slides'][0]['image']}"
    first = server.get(address)
    assert "max-age" in first.headers["cache-control"]
    again = server.get(address, headers={"If-None-Match": first.headers["etag"]})
    assert again.status_code == 304
    assert again.content == b""


def test_places_and_cells_belong_together(viewed, client):
    server = client(viewed / "asmil")
    places = unpack(server.get("/api/slides/0/places?run=0").content)
    coords = places["coords"].reshape(-1, 2)
    cells = places["cells"].reshape(places["rows"], places["columns"])
    assert len(coords) == places["tiles"] == (WIDTH // TILE) * (HEIGHT // TILE)
    for tile in (0, 5, len(coords) - 1):
        column, row = ((coords[tile] - [places["x"], places["y"]]) / np.array(places["cell"])).astype(int)
        assert cells[row, column] == tile


def test_a_map_of_the_trained_models(viewed, client):
    import asmil

    server = client(viewed / "asmil")
    maps = server.get("/api/slides/0/runs/0/maps").json()
    assert maps["kinds"][0]["kind"] == "attention"
    found = unpack(server.get("/api/slides/0/runs/0/map?source=final").content)
    expected = asmil.load_run(viewed / "asmil").attention("s0").tile_map
    np.testing.assert_allclose(found["exact"], expected, rtol=1e-5)
    assert found["top"][0] == expected.argmax()
    assert found["bottom"][0] == expected.argmin()
    assert found["percentile"][expected.argmax()] == 255
    np.testing.assert_allclose(found["linear"] / 255 * found["high"], expected, atol=found["high"] / 250)


def test_attention_is_sent_relative_to_the_average_tile_on_the_scale_of_the_pictures(viewed, client):
    server = client(viewed / "asmil")
    found = unpack(server.get("/api/slides/0/runs/0/map?source=final").content)
    assert found["scales"][0] == "relative"
    values = found["exact"].astype(np.float64)
    scale = natural_scale("attention", values, average_weight("attention", values))
    assert scale.kind == "relative"
    assert np.abs(found["relative"] - 255 * scale.positions(values)).max() <= 0.51
    assert found["relative_ends"] == [scale.low, scale.high]
    others = unpack(server.get("/api/slides/0/runs/0/map", params={"kind": "gradient"}).content)
    assert others["scales"][0] == "linear"
    assert "relative" not in others
    probability = unpack(server.get("/api/slides/0/runs/0/map", params={"kind": "tile probability"}).content)
    assert (probability["low"], probability["high"]) == (0, 1)


def test_alarms_of_a_run_and_the_finding_of_a_slide_come_with_every_map(viewed, client):
    server = client(viewed / "asmil")
    alarms = [alarm.finding for alarm in alarms_of_run(viewed / "asmil")]
    assert alarms
    for models in ("", "?models=0"):
        assert server.get(f"/api/slides/0/runs/0/maps{models}").json()["alarms"] == alarms
    found = unpack(server.get("/api/slides/0/runs/0/map?source=final").content)
    assert found["findings"] == [attention_finding(found["exact"].astype(np.float64), found["averages"][0])]
    saved = json.loads(server.get("/api/slides/0/runs/0/map.geojson?moment=0&threshold=0").content)
    assert saved["asmil"]["alarms"] == alarms


def test_a_head_and_token_of_one_model(viewed, client):
    server = client(viewed / "asmil")
    kinds = {entry["kind"]: entry["parts"] for entry in server.get("/api/slides/0/runs/0/maps").json()["kinds"]}
    parts = kinds["attention row"]
    assert parts[0].startswith("head 1, token 1")
    first, last = (
        unpack(server.get("/api/slides/0/runs/0/map", params={"kind": "attention row", "part": part}).content)
        for part in (0, len(parts) - 1)
    )
    assert abs(first["exact"].sum() - 1) < 1e-4
    assert not np.array_equal(first["exact"], last["exact"])
    beyond = server.get("/api/slides/0/runs/0/map", params={"kind": "attention row", "part": len(parts)})
    assert beyond.status_code == 422
    assert str(len(parts)) in beyond.json()["error"]


def test_kinds_that_explain_a_class(viewed, client):
    server = client(viewed / "asmil")
    kinds = {entry["kind"]: entry["parts"] for entry in server.get("/api/slides/0/runs/0/maps").json()["kinds"]}
    assert kinds["gradient"] == ["predicted", "normal", "tumor"]
    normal, tumor = (
        unpack(server.get("/api/slides/0/runs/0/map", params={"kind": "gradient", "part": part}).content)
        for part in (1, 2)
    )
    assert normal["low"] == -normal["high"]
    assert (normal["explained"], tumor["explained"]) == ("normal", "tumor")
    predicted = unpack(server.get("/api/slides/0/runs/0/map", params={"kind": "gradient"}).content)
    assert predicted["explained"] in ("normal", "tumor")
    np.testing.assert_allclose(normal["exact"], -tumor["exact"], atol=1e-5)


def test_the_probability_of_tiles_begins_with_the_positive_class(viewed, client):
    server = client(viewed / "asmil")
    kinds = {entry["kind"]: entry["parts"] for entry in server.get("/api/slides/1/runs/0/maps").json()["kinds"]}
    assert kinds["tile probability"] == ["tumor", "normal"]
    query = {"kind": "tile probability"}
    tumor, normal = (
        unpack(server.get("/api/slides/1/runs/0/map", params={**query, "part": part}).content)["exact"]
        for part in (0, 1)
    )
    np.testing.assert_allclose(tumor + normal, 1, atol=1e-5)
    one, other = (
        unpack(server.get("/api/slides/1/runs/0/map", params={**query, "training": training}).content)["exact"]
        for training in ("0-0", "0-1")
    )
    np.testing.assert_allclose((one + other) / 2, tumor, atol=1e-5)
    assert np.abs(one - other).max() > 1e-6  # the map of the training that was chosen


def test_the_probability_of_tiles_of_several_classes_begins_with_the_predicted_one(viewed, client, tmp_path):
    labels = ["a", "b", "c"]
    table = [f"s{number},{labels[number % 3]},{viewed}/features/s{number}.h5" for number in range(9)]
    (tmp_path / "cohort.csv").write_text("\n".join(["slide,label,features", *table]) + "\n")
    server = client(train_run(tmp_path / "cohort.csv", tmp_path / "run", "abmil", epochs=1, record="none"))
    kinds = {entry["kind"]: entry["parts"] for entry in server.get("/api/slides/0/runs/0/maps").json()["kinds"]}
    assert kinds["tile probability"] == ["predicted", *labels]
    query = {"kind": "tile probability"}
    first = unpack(server.get("/api/slides/0/runs/0/map", params=query).content)
    part = 1 + labels.index(first["explained"])
    same = unpack(server.get("/api/slides/0/runs/0/map", params={**query, "part": part}).content)
    np.testing.assert_array_equal(first["exact"], same["exact"])


def test_recorded_attention_of_every_epoch(viewed, client):
    from asmil.runs.attention_file import read_attention

    server = client(viewed / "asmil")
    record = read_attention(viewed / "asmil" / "fold-0" / "seed-1")
    slide = slide_id(server, record.slides[0])
    maps = server.get(f"/api/slides/{slide}/runs/0/maps").json()
    assert {(one["fold"], one["seed"]) for one in maps["recorded"]} == {(0, 0), (0, 1)}
    without_models = server.get(f"/api/slides/{slide}/runs/0/maps?models=0").json()
    assert without_models["recorded"] == maps["recorded"]
    assert not without_models["complete"]
    found = unpack(server.get(f"/api/slides/{slide}/runs/0/map?source=recorded&training=0-1").content)
    assert found["epochs"] == [0, 1, 2, 3]
    assert found["jsd"][0] is None
    assert len(found["linear"]) == 4 * found["tiles"]
    expected = record.attention(0)
    shown = found["linear"].reshape(4, -1) / 255 * found["high"]
    np.testing.assert_allclose(shown, expected, atol=found["high"] / 250)


def test_a_run_without_recordings_says_how_to_record(viewed, client):
    server = client(viewed / "abmil")
    maps = server.get("/api/slides/0/runs/0/maps").json()
    assert maps["recorded"] == []
    assert "record.attention" in maps["why_not_recorded"]
    refused = server.get("/api/slides/0/runs/0/map?source=recorded&training=0-0")
    assert refused.status_code == 422


def test_a_slide_that_was_not_recorded_names_those_that_were(viewed, client):
    from asmil.runs.attention_file import read_attention

    server = client(viewed / "asmil")
    slides = server.get("/api/about").json()["slides"]
    not_recorded = next(row["id"] for row in slides if row["runs"][0]["role"] == "test")
    why = server.get(f"/api/slides/{not_recorded}/runs/0/maps?models=0").json()["why_not_recorded"]
    assert read_attention(viewed / "asmil" / "fold-0" / "seed-0").slides[0] in why


def test_the_folder_of_images_that_is_given_comes_before_the_manifest(viewed, tmp_path):
    from asmil.viewer.collection import collect

    (tmp_path / "cohort.csv").write_text(f"slide,image\ns0,{viewed}/slides/s0.tif\ns1,{viewed}/slides/s1.tif\n")
    (tmp_path / "moved").mkdir()
    (tmp_path / "moved" / "s0.tif").write_bytes((viewed / "slides" / "s1.tif").read_bytes())
    slides = collect([tmp_path / "cohort.csv"], Places(slides=tmp_path / "moved")).slides
    assert [slide.image.path.parent.name for slide in slides if slide.image] == ["moved", "slides"]


def test_a_slide_without_features_and_features_without_a_slide(viewed, client):
    server = client(viewed / "all.csv")
    without_features = slide_id(server, "s10")
    assert server.get(f"/api/slides/{without_features}").json()["image"]["levels"]
    refused = server.get(f"/api/slides/{without_features}/places")
    assert refused.status_code == 422
    assert "s10" in refused.json()["error"]
    without_image = slide_id(server, "s11")
    about = server.get(f"/api/slides/{without_image}").json()
    assert about["image"] is None
    assert about["size"] == [WIDTH, HEIGHT]
    assert unpack(server.get(f"/api/slides/{without_image}/places").content)["tiles"] > 0
    assert server.get(f"/api/slides/{without_image}/thumbnail.jpg").status_code == 404


def test_a_folder_of_slides_alone(viewed, client):
    about = client(viewed / "slides").get("/api/about").json()
    assert about["runs"] == []
    assert len(about["slides"]) == 11


def test_features_of_another_slide_size_are_refused(viewed, client, tmp_path):
    (tmp_path / "features").mkdir()
    write_slide_features(tmp_path / "features" / "s0.h5", grid(4, 4), 0, 0, (512, 512))
    (tmp_path / "cohort.csv").write_text("slide\ns0\n")
    server = client(tmp_path / "cohort.csv", places=Places(slides=viewed / "slides"))
    refused = server.get("/api/slides/0/places")
    assert refused.status_code == 422
    assert "512" in refused.json()["error"]
    assert str(WIDTH) in refused.json()["error"]


def test_features_without_coordinates_are_a_sentence(client, tmp_path):
    import torch

    (tmp_path / "features").mkdir()
    torch.save(torch.randn(5, 8), tmp_path / "features" / "a.pt")
    server = client(tmp_path / "features")
    refused = server.get("/api/slides/0/places")
    assert refused.status_code == 422
    assert "coordinates" in refused.json()["error"]


def test_one_tile(client, tmp_path):
    write_features(
        tmp_path / "features" / "a.h5",
        np.ones((1, 8)),
        np.array([[256, 512]]),
        Provenance(tile_px_level0=256, tile_px=256, tile_um=128.0, mpp=0.5),
    )
    places = unpack(client(tmp_path / "features").get("/api/slides/0/places").content)
    assert places["cells"].tolist() == [0]
    assert (places["x"], places["y"]) == (256, 512)


def test_annotations_are_outlines_in_level_0_pixels(viewed, client):
    server = client(viewed / "asmil")
    (region,) = server.get(f"/api/slides/{slide_id(server, 's1')}/annotations").json()["regions"]
    assert region["group"] == "tumor"
    assert np.reshape(region["rings"][0], (-1, 2)).max(axis=0).tolist() == [500, 400]
    assert server.get("/api/slides/0/annotations").json() == {"regions": []}


def test_a_mask_becomes_outlines(viewed, tmp_path):
    import tifffile

    from asmil.viewer.packing import outlines_of

    mask = np.zeros((HEIGHT // 4, WIDTH // 4), dtype=np.uint8)
    mask[50:100, 25:125] = 1
    tifffile.imwrite(tmp_path / "s1_mask.tif", mask)
    (region,) = outlines_of(tmp_path / "s1_mask.tif", (WIDTH, HEIGHT))
    points = np.reshape(region["rings"][0], (-1, 2))
    np.testing.assert_allclose(points.min(axis=0), [100, 200], atol=4)
    np.testing.assert_allclose(points.max(axis=0), [500, 400], atol=4)


def test_geojson_of_what_is_shown(viewed, client):
    server = client(viewed / "asmil")
    answer = server.get("/api/slides/0/runs/0/map.geojson?source=final&moment=0&scale=percentile&threshold=230")
    features = json.load(io.BytesIO(answer.content))["features"]
    places = unpack(server.get("/api/slides/0/places?run=0").content)
    assert 0 < len(features) < places["tiles"] / 5
    ring = np.array(features[0]["geometry"]["coordinates"][0])
    assert (ring.max(axis=0) - ring.min(axis=0)).tolist() == [TILE, TILE]
    assert ring[0].tolist() in places["coords"].reshape(-1, 2).tolist()


def test_a_region_is_that_part_of_the_slide(viewed, client):
    answer = client(viewed / "cohort.csv").get("/api/slides/0/region.jpg?x=128&y=256&side=128&px=128")
    expected = drawn_slide(0)[256:384, 128:256].astype(int)
    assert np.abs(decoded(answer.content).astype(int) - expected).mean() < 6


def test_an_unfinished_run_is_shown_without_predictions(viewed, client, tmp_path):
    import shutil

    run = tmp_path / "unfinished"
    shutil.copytree(viewed / "asmil", run)
    (run / "predictions.parquet").unlink()
    for part in run.glob("fold-*/seed-*/predictions.parquet"):
        part.unlink()
    server = client(run)
    about = server.get("/api/about").json()
    assert all("prediction" not in row["runs"][0] for row in about["slides"])
    assert any("unfinished" in note for note in about["notes"])
    maps = [server.get(f"/api/slides/{row['id']}/runs/0/maps").json() for row in about["slides"]]
    assert all(one["error"] for one in maps)
    assert any(one["recorded"] for one in maps)


def test_a_run_that_joins_the_slides_of_a_patient(viewed, client, tmp_path):
    import asmil

    settings = {"training.epochs": 1, "record.attention": "all", "record.role": "both", "data.unit": "patient"}
    asmil.train(viewed / "cohort.csv", tmp_path / "joined", method="abmil", settings=settings, progress=False)
    server = client(tmp_path / "joined")
    tiles = (WIDTH // TILE) * (HEIGHT // TILE)
    for name in ("s0", "s6"):
        slide = slide_id(server, name)
        assert unpack(server.get(f"/api/slides/{slide}/runs/0/map").content)["tiles"] == tiles
