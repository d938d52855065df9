"""The viewer in a real browser: what a person does with it, on a good day and on a bad one."""

import json
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest

from asmil.explain.color_scale import relative_positions
from viewed_cohort import TILE, drawn_slide, grid, train_run, write_slide_features

pytestmark = pytest.mark.browser

MAP_SHOWN = "() => document.querySelector('.legend')?.hidden === false"
MAP_PIXELS = """() => {
  const { map } = asmilViewer.panes[0].view.overlay;
  return map && [...map.canvas.getContext('2d').getImageData(0, 0, map.canvas.width, map.canvas.height).data];
}"""
PREDICTIONS = "() => asmilViewer.about.slides.map((row) => row.runs[0].probabilities)"
COLOR_OF = """async (what) => {
  const regionOf = async () => {
    const picture = new Image();
    const { image } = asmilViewer.about.slides[0];
    picture.src = `api/slides/0/region.jpg?v=${image}&x=0&y=0&side=256&px=64`;
    await picture.decode();
    return picture;
  };
  const source = await (what === "region" ? regionOf() : document.querySelector(what));
  const canvas = document.createElement('canvas');
  canvas.width = canvas.height = 9;
  const context = canvas.getContext('2d');
  context.drawImage(source, 0, 0, 9, 9);
  return [...context.getImageData(4, 4, 1, 1).data].slice(0, 3);
}"""
OVERLAY_SUM = """() => {
  const canvas = document.querySelector('canvas.overlay');
  const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  let sum = 0;
  for (let at = 0; at < pixels.length; at += 1) sum = (sum * 31 + pixels[at]) % 1000003;
  return sum;
}"""
SLIDE_FILTER = "() => [...document.querySelectorAll('canvas')].map((one) => one.style.filter).filter(Boolean)[0]"


def choose(page, name: str) -> None:
    page.fill("input[type=search]", name)
    # the list is drawn again a moment later, and a row that is replaced while it is clicked does nothing
    page.wait_for_function(
        "name => [...document.querySelectorAll('.slide')].every((row) => row.title.includes(name))", arg=name
    )
    page.click(f".slide[title='{name}']")
    page.wait_for_function("name => document.querySelector('.pane-title strong').textContent === name", arg=name)


def linked_place(page) -> dict[str, str]:
    """What the address says of the view."""
    return page.evaluate("() => Object.fromEntries(new URLSearchParams(location.hash.slice(1)))")


def recorded_slide(viewed: Path) -> str:
    from asmil.runs.attention_file import read_attention

    return read_attention(viewed / "asmil" / "fold-0" / "seed-0").slides[0]


def test_load_search_and_hover(viewed, serve, open_page):
    page = open_page(serve(viewed / "asmil", viewed / "abmil").address)
    page.wait_for_function(MAP_SHOWN)
    assert page.locator(".slide").count() == 11
    assert "training" not in page.inner_text(".slide.chosen")
    page.fill("input[type=search]", "no such slide")
    page.wait_for_function("() => document.querySelectorAll('.slide').length === 0")
    page.click(".nothing button")
    page.wait_for_function("() => document.querySelectorAll('.slide').length > 2")
    page.fill("input[type=search]", "p3")
    page.wait_for_function("() => document.querySelectorAll('.slide').length === 2")
    box = page.locator(".pane").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_selector(".tip:not([hidden])")
    assert "attention" in page.inner_text(".tip")
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_selector(".tile-dialog[open]")
    page.wait_for_function("() => document.querySelector('.tile-picture').naturalWidth > 0")
    assert page.evaluate("document.querySelector('.tile-picture').naturalWidth") == TILE


def test_zoom_loads_finer_tiles(tmp_path, serve, open_page):
    from asmil.slides.pyramid_tiff import write_pyramid

    write_pyramid(tmp_path / "slides" / "large.tif", drawn_slide(0, 6144, 4096), 0.5, downsamples=(4, 16))
    page = open_page(serve(tmp_path / "slides").address)
    page.wait_for_function("() => document.querySelector('.facts').textContent.includes('generic-tiff')")
    with page.expect_response(lambda answer: "/tiles/0/" in answer.url) as answer:
        for _ in range(6):
            page.keyboard.press("+")
            page.wait_for_timeout(200)
    assert answer.value.ok


def test_a_link_reproduces_the_view(viewed, serve, open_page):
    page = open_page(serve(viewed / "asmil").address)
    page.wait_for_function(MAP_SHOWN)
    page.keyboard.press("+")
    page.keyboard.press("[")
    page.keyboard.press("b")
    page.wait_for_function("() => location.hash.includes('zoom=') && location.hash.includes('opacity=45')")
    page.wait_for_timeout(800)
    again = open_page(page.evaluate("location.href"))
    again.wait_for_function(MAP_SHOWN)
    again.wait_for_timeout(500)
    first, second = linked_place(page), linked_place(again)
    assert first["slide"] == second["slide"]
    assert second["opacity"] == "45"
    assert again.evaluate(SLIDE_FILTER) is None  # in its colors
    for name in ("x", "y", "zoom"):
        np.testing.assert_allclose(float(first[name]), float(second[name]), rtol=0.02)


def test_a_link_with_two_panes_reproduces_both(viewed, serve, open_page):
    place = "x=700&y=500&zoom=1.5"
    both = place.replace("&", "&b.")
    address = f"{serve(viewed / 'asmil').address}#slide=s0&{place}&b.slide=s1&b.{both}&linked=0"
    page = open_page(address)
    page.wait_for_function("() => document.querySelectorAll('.pane .legend:not([hidden])').length === 2")
    page.wait_for_timeout(800)
    width = page.evaluate("asmilViewer.panes.map((pane) => pane.view.position.zoom)")
    np.testing.assert_allclose(width, [1.5, 1.5], rtol=0.02)
    drawn = page.evaluate("asmilViewer.panes.map((pane) => pane.view.shownPosition().zoom)")
    np.testing.assert_allclose(drawn, [1.5, 1.5], rtol=0.02)


def test_the_slider_plays_the_epochs(viewed, serve, open_page):
    page = open_page(
        f"{serve(viewed / 'asmil').address}#slide={recorded_slide(viewed)}&source=recorded&moment=0&scale=percentile"
    )
    page.wait_for_selector(".timeline:not([hidden]) .chart canvas")
    assert "epoch 0 of 3" in page.inner_text(".epoch")
    before = page.evaluate(OVERLAY_SUM)
    page.keyboard.press(" ")
    page.wait_for_function("() => document.querySelector('.epoch').textContent.includes('epoch 3 of 3')")
    assert page.evaluate(OVERLAY_SUM) != before
    requests = []
    page.on("request", lambda request: requests.append(request.url))
    page.keyboard.press("ArrowLeft")
    page.wait_for_function("() => document.querySelector('.epoch').textContent.includes('epoch 2 of 3')")
    assert not [url for url in requests if "/map" in url]


def test_compare_two_runs_linked(viewed, serve, open_page):
    page = open_page(serve(viewed / "asmil", viewed / "abmil").address)
    page.wait_for_function(MAP_SHOWN)
    page.keyboard.press("c")
    page.wait_for_function("() => document.querySelectorAll('.pane .legend:not([hidden])').length === 2")
    titles = page.locator(".pane-title").all_inner_texts()
    assert "asmil" in titles[0]
    assert "abmil" in titles[1]
    box = page.locator(".pane").nth(0).bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.wheel(0, -600)
    page.wait_for_timeout(1200)
    place = linked_place(page)
    np.testing.assert_allclose(float(place["zoom"]), float(place["b.zoom"]), rtol=0.02)
    np.testing.assert_allclose(float(place["x"]), float(place["b.x"]), atol=5)


def test_panes_are_stacked_on_an_upright_screen(viewed, serve, open_page):
    page = open_page(serve(viewed / "asmil", viewed / "abmil").address, 820, 1180)
    page.wait_for_function(MAP_SHOWN)
    page.keyboard.press("c")
    page.wait_for_function("() => document.querySelectorAll('.pane').length === 2")
    first, second = (page.locator(".pane").nth(place).bounding_box() for place in (0, 1))
    assert second["y"] >= first["y"] + first["height"]
    assert second["width"] == first["width"]


def test_a_map_with_both_signs_has_zero_in_the_middle_of_its_colors(viewed, serve, open_page):
    page = open_page(f"{serve(viewed / 'asmil').address}#kind=leave_one_out")
    page.wait_for_function(MAP_SHOWN)
    low, middle, high = page.locator(".legend-scale span").all_inner_texts()
    assert middle == "0"
    np.testing.assert_allclose(float(low), -float(high))
    assert "predicted" not in page.inner_text(".legend-title")  # but the class that was predicted
    assert page.locator(".controls option[value=PuOr_r]").count() == 1
    assert page.locator(".controls option[value=viridis]").count() == 0


def test_attention_is_drawn_relative_to_the_average_tile(viewed, serve, open_page):
    from asmil.runs.attention_file import read_attention

    page = open_page(f"{serve(viewed / 'asmil').address}#slide={recorded_slide(viewed)}&source=recorded&moment=3")
    page.wait_for_function(MAP_SHOWN)
    assert page.locator(".legend-scale span").all_inner_texts()[1] == "1"
    assert page.evaluate("asmilViewer.panes[0].scale") == "relative"
    record = read_attention(viewed / "asmil" / "fold-0" / "seed-0")
    relative = record.attention(0)[3] * record.n_tiles[0]
    shown = page.evaluate("asmilViewer.panes[0].canvas.places.tiles")
    texts = page.evaluate(f"[...Array({shown}).keys()].map((tile) => asmilViewer.panes[0].valueText(tile))")
    read = [float(text.split("(≈ ")[1].split()[0]) for text in texts]
    np.testing.assert_allclose(read, relative, rtol=0.015)  # a byte per tile: 1 % on this scale
    codes = page.evaluate("[...asmilViewer.panes[0].values]")
    np.testing.assert_allclose(codes, 255 * relative_positions(relative), atol=0.51)
    page.select_option(".controls label:has-text('Scale') select", "percentile")
    page.wait_for_function("() => location.hash.includes('scale=percentile')")
    assert max(page.evaluate("[...asmilViewer.panes[0].values]")) > 250


def test_alarms_of_a_run_are_on_its_pane_and_on_the_saved_picture(viewed, serve, open_page, tmp_path):
    from asmil.evaluation.run_alarms import alarms_of_run
    from asmil.slides.qc import read_picture

    server = serve(viewed / "asmil", viewed / "abmil")
    page = open_page(f"{server.address}#slide=s0&run=asmil&b.slide=s0&b.run=abmil")
    page.wait_for_function("() => document.querySelectorAll('.pane .legend:not([hidden])').length === 2")
    alarms = [alarms_of_run(viewed / name) for name in ("asmil", "abmil")]
    assert alarms[0]
    for place, expected in enumerate(alarms):
        shown = page.locator(".pane").nth(place).locator(".alarm").all_inner_texts()
        assert len(shown) == len(expected)
        assert all(alarm.finding in text for alarm, text in zip(expected, shown, strict=True))
    with page.expect_download() as saved:
        page.keyboard.press("s")
    saved.value.save_as(tmp_path / "a.png")
    picture = read_picture(tmp_path / "a.png")
    assert ((picture == (176, 32, 32)).all(axis=2)[-200:]).sum() > 50


def test_the_overview_appears_where_a_part_of_the_slide_is_in_view(viewed, serve, open_page):
    page = open_page(serve(viewed / "slides").address)
    page.wait_for_function("() => document.querySelector('.facts').textContent.includes('generic-tiff')")
    page.wait_for_selector(".navigator", state="hidden")
    page.keyboard.press("+")
    page.keyboard.press("+")
    page.wait_for_selector(".navigator", state="visible")
    box = page.locator(".navigator").bounding_box()
    np.testing.assert_allclose(box["width"] / box["height"], 1408 / 1024, rtol=0.1)


def test_slides_of_different_resolution_are_linked_in_microns(tmp_path, serve, open_page):
    from asmil.slides.pyramid_tiff import write_pyramid

    write_pyramid(tmp_path / "slides" / "fine.tif", drawn_slide(0, 2048, 1536), 0.25, downsamples=(4,))
    write_pyramid(tmp_path / "slides" / "coarse.tif", drawn_slide(1, 1024, 1024), 0.5, downsamples=(4,))
    page = open_page(f"{serve(tmp_path / 'slides').address}#slide=fine&b.slide=coarse")
    page.wait_for_function("() => document.querySelectorAll('.pane').length === 2")
    page.wait_for_timeout(1000)
    page.keyboard.press("+")
    page.wait_for_timeout(1200)
    place = linked_place(page)
    np.testing.assert_allclose(0.25 * float(place["zoom"]), 0.5 * float(place["b.zoom"]), rtol=0.02)


def test_a_slide_without_features_and_features_without_a_slide(viewed, serve, open_page):
    page = open_page(serve(viewed / "all.csv").address)
    choose(page, "s10")
    page.wait_for_function("() => document.querySelector('.facts').textContent.includes('generic-tiff')")
    page.fill("input[type=search]", "")
    page.wait_for_function("() => document.querySelectorAll('.slide').length === 12")
    choose(page, "s11")
    page.wait_for_function("() => document.querySelector('.facts').textContent.includes('tiles only')")


def test_a_run_without_recorded_epochs_says_how_to_record_them(viewed, serve, open_page):
    page = open_page(serve(viewed / "abmil").address)
    page.wait_for_function(MAP_SHOWN)
    page.click("text=Over epochs")
    page.wait_for_selector(".timeline .why:not([hidden])")
    assert "record.attention" in page.inner_text(".timeline .why")


def test_a_hundred_thousand_tiles_and_fifty_epochs(tmp_path, serve, open_page):
    from viewer_speed import large_recorded_run

    server = serve(large_recorded_run(tmp_path, tiles=100_000, epochs=50))
    page = open_page(f"{server.address}#slide=large&source=recorded&moment=0")
    page.wait_for_selector(".timeline:not([hidden]) .chart canvas")
    before = page.evaluate(OVERLAY_SUM)
    page.evaluate("document.querySelector('.timeline input').value = 40")
    page.dispatch_event(".timeline input", "input")
    page.wait_for_function("() => document.querySelector('.epoch').textContent.includes('epoch 40 of 49')")
    assert page.evaluate(OVERLAY_SUM) != before


def test_a_dead_server_is_reported_and_the_page_reconnects(viewed, serve, open_page):
    server = serve(viewed / "slides")
    page = open_page(server.address, allow_errors=True)
    page.wait_for_function("() => document.querySelector('.facts').textContent.includes('generic-tiff')")
    server.kill()
    page.wait_for_selector(".banner:not([hidden])")
    server.start()
    page.wait_for_selector(".banner[hidden]", state="attached")
    choose(page, "s3")


def test_screenshot_and_geojson_are_saved(viewed, serve, open_page, tmp_path):
    page = open_page(serve(viewed / "asmil").address)
    page.wait_for_function(MAP_SHOWN)
    with page.expect_download() as saved:
        page.keyboard.press("s")
    saved.value.save_as(tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    with page.expect_download() as saved:
        page.keyboard.press("g")
    saved.value.save_as(tmp_path / "a.geojson")
    assert json.loads((tmp_path / "a.geojson").read_text())["features"]


def test_an_export_has_no_dark_bars(viewed, serve, open_page, tmp_path):
    page = open_page(serve(viewed / "asmil").address, 700, 1000, color_scheme="dark")
    page.wait_for_function(MAP_SHOWN)
    page.wait_for_timeout(1000)
    with page.expect_download() as saved:
        page.keyboard.press("s")
    saved.value.save_as(tmp_path / "a.png")
    pixels = cv2.imread(str(tmp_path / "a.png"))
    assert pixels.mean(axis=(1, 2)).min() > 60
    pane = page.locator(".pane").bounding_box()
    assert pixels.shape[1] == pane["width"]
    below = pixels.shape[0] - pane["width"] * 1024 / 1408  # the caption, and lines for alarms and notes
    lines = round((below - 70) / 16)
    assert 0 <= lines <= 8
    np.testing.assert_allclose(below, 70 + 16 * lines, atol=3)


def test_back_and_forward_walk_through_the_slides(viewed, serve, open_page):
    page = open_page(serve(viewed / "asmil", viewed / "abmil").address)
    page.wait_for_function(MAP_SHOWN)
    first = page.inner_text(".pane-title strong")
    page.evaluate("window.stillHere = true")
    shown = "name => document.querySelector('.pane-title strong').textContent === name"
    for name in ("s3", "s5"):
        choose(page, name)
        page.wait_for_function(MAP_SHOWN)
    page.fill("input[type=search]", "")
    page.keyboard.press("Escape")
    page.keyboard.press("+")
    page.wait_for_timeout(1000)
    zoom = linked_place(page)["zoom"]
    page.go_back()
    page.wait_for_function(shown, arg="s3")
    page.wait_for_function(MAP_SHOWN)
    assert linked_place(page)["slide"] == "s3"
    assert page.locator(".slide.chosen").get_attribute("title") == "s3"
    page.go_back()
    page.wait_for_function(shown, arg=first)
    page.go_forward()
    page.go_forward()
    page.wait_for_function(shown, arg="s5")
    page.wait_for_function(MAP_SHOWN)
    page.wait_for_timeout(600)
    np.testing.assert_allclose(float(linked_place(page)["zoom"]), float(zoom), rtol=0.02)
    page.keyboard.press("c")
    page.wait_for_function("() => document.querySelectorAll('.pane').length === 2")
    page.go_back()
    page.wait_for_function("() => document.querySelectorAll('.pane').length === 1")
    page.go_forward()
    page.wait_for_function("() => document.querySelectorAll('.pane .legend:not([hidden])').length === 2")
    assert page.evaluate("window.stillHere")  # the page was never left


def test_the_map_before_is_not_shown_under_the_new_choice(viewed, serve, open_page):
    page = open_page(serve(viewed / "asmil", viewed / "abmil").address)
    page.wait_for_function(MAP_SHOWN)
    maps = {"asmil, attention": page.evaluate(MAP_PIXELS)}
    assert maps["asmil, attention"] is not None
    held = []
    page.route("**/map?**", lambda route: held.append(route))
    for what, label, value in (("asmil, gradient", "Map", "gradient"), ("abmil, attention", "Run", "abmil")):
        page.locator(f".controls label:has(> span:text-is('{label}')) select").select_option(value)
        while not held:
            page.wait_for_timeout(50)
        assert page.evaluate(MAP_PIXELS) is None
        assert page.locator(".legend").is_hidden()
        assert page.locator(".strip").is_hidden()
        assert page.locator(".pane-message.busy").is_visible()
        held.pop().continue_()
        page.wait_for_function(MAP_SHOWN)
        maps[what] = page.evaluate(MAP_PIXELS)
    assert len({json.dumps(pixels) for pixels in maps.values()}) == 3
    page.unroute("**/map?**")
    page.locator(".controls label:has(> span:text-is('Run')) select").select_option("asmil")
    page.wait_for_function(MAP_SHOWN)
    assert page.evaluate(MAP_PIXELS) == maps["asmil, attention"]


def test_slides_are_filtered_by_site_and_grouped_by_patient(viewed, serve, open_page, tmp_path):
    rows = [f"s{number},p{number % 3},{'Lyon' if number % 2 else 'Oslo'}" for number in range(8)]
    (tmp_path / "cohort.csv").write_text("\n".join(["slide,patient,site", *rows, "s8,p4,"]) + "\n")
    page = open_page(serve(tmp_path / "cohort.csv", "--slides", viewed / "slides").address)
    choice = ".list label:has(> span:text-is('{}')) select"
    names = "() => [...document.querySelectorAll('.slide')].map((one) => one.title)"
    page.select_option(choice.format("Site"), "Lyon")
    page.wait_for_function("() => document.querySelectorAll('.slide').length === 4")
    assert page.evaluate(names) == ["s1", "s3", "s5", "s7"]
    page.select_option(choice.format("Group"), "patient")
    page.wait_for_selector(".group")
    assert page.evaluate(names) == ["s1", "s7", "s3", "s5"]
    assert page.evaluate("() => [...document.querySelectorAll('.group b')].map((one) => one.textContent)") == [
        *("p1", "p0", "p2"),
    ]
    page.select_option(choice.format("Site"), label="not stated")
    page.wait_for_function("() => document.querySelectorAll('.slide').length === 1")
    assert page.evaluate(names) == ["s8"]


def test_another_cohort_on_the_same_port_shows_its_own_pictures(tmp_path, serve, open_page):
    from asmil.slides.pyramid_tiff import write_pyramid

    for cohort, color in (("a", (250, 0, 0)), ("b", (0, 0, 250))):
        pixels = np.full((1024, 1408, 3), color, dtype=np.uint8)
        write_pyramid(tmp_path / cohort / "slides" / "s.tif", pixels, 0.5, downsamples=(4,))
        write_slide_features(tmp_path / cohort / "features" / "s.h5", grid(11, 8), 0, 0, (1408, 1024))
        (tmp_path / cohort / "cohort.csv").write_text(f"slide,patient,label\ns,patient {cohort},x\n")
    server = serve(tmp_path / "a" / "cohort.csv")
    page = open_page(server.address, allow_errors=True)
    other_tab = page.context.new_page()
    other_tab.goto(server.address)

    def wait_for_color(tab, patient, channel):
        tab.wait_for_function("text => document.querySelector('.facts')?.textContent.includes(text)", arg=patient)
        tab.wait_for_function("() => document.querySelector('.thumbnail').naturalWidth > 0")
        for picture in (".thumbnail", ".deep-zoom canvas", "region"):  # drawn in time, and never the other color
            colors = []
            while not colors or max(colors[-1]) - min(colors[-1]) < 100:
                assert len(colors) < 200, f"{picture} stays {colors[-1]}"
                tab.wait_for_timeout(50)
                colors.append(tab.evaluate(COLOR_OF, picture))
            assert np.argmax(colors[-1]) == channel, picture

    for tab in (page, other_tab):
        wait_for_color(tab, "patient a", 0)
    server.kill()
    server.arguments = [str(tmp_path / "b" / "cohort.csv")]
    server.start()
    page.goto(server.address)
    for tab in (page, other_tab):  # one that is opened again, and one that was left open
        wait_for_color(tab, "patient b", 2)


def test_a_run_that_was_trained_again_is_announced_and_loaded(viewed, serve, open_page, tmp_path):
    run = train_run(viewed / "cohort.csv", tmp_path / "run", "abmil", epochs=1, record="none")
    page = open_page(serve(run).address, allow_errors=True)
    page.wait_for_function(MAP_SHOWN)
    before = page.evaluate(MAP_PIXELS)
    predictions = page.evaluate(PREDICTIONS)
    slide = page.inner_text(".pane-title strong")
    shutil.rmtree(run)
    train_run(viewed / "cohort.csv", run, "abmil", epochs=5, record="none")
    page.wait_for_selector(".banner:not([hidden]) button")
    other = "s3" if slide != "s3" else "s5"
    page.click(f".slide[title='{other}']")  # the old run has no map of it
    page.wait_for_selector(".banner[hidden]", state="attached")
    page.wait_for_function("name => document.querySelector('.pane-title strong')?.textContent === name", arg=other)
    page.wait_for_function(MAP_SHOWN)
    assert page.evaluate(PREDICTIONS) != predictions
    page.go_back()
    page.wait_for_function("name => document.querySelector('.pane-title strong').textContent === name", arg=slide)
    page.wait_for_function(MAP_SHOWN)
    assert page.evaluate(MAP_PIXELS) != before


def test_a_tablet(viewed, serve, open_page):
    page = open_page(serve(viewed / "asmil").address, 768, 1024, has_touch=True)
    page.wait_for_function(MAP_SHOWN)
    assert not page.locator(".list").is_visible()
    page.tap("[title=Slides]")
    page.wait_for_selector(".list", state="visible")
    page.tap(".slide[title=s3]")
    page.wait_for_function("() => document.querySelector('.pane-title strong').textContent === 's3'")
    assert page.evaluate("document.documentElement.scrollWidth") <= 768


def test_names_cannot_run_code_in_the_page(tmp_path, serve, open_page):
    name = "<img src=x onerror=alert(1)>"
    write_slide_features(tmp_path / "features" / "a.h5", grid(4, 4), 0, 0, (512, 512))
    (tmp_path / "cohort.csv").write_text(f"slide,label,features\na,{name},features/a.h5\n")
    page = open_page(serve(tmp_path / "cohort.csv").address)
    page.wait_for_function("() => document.querySelector('.facts').textContent.includes('tiles only')")
    assert name in page.inner_text(".pane-title")
    assert page.locator("img[src=x]").count() == 0
