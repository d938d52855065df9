"""The same extraction on a Ray cluster of two nodes, one of which is taken away in the middle."""

from pathlib import Path

import pytest

from asmil.engine.ray_engine import RayEngine
from asmil.extraction.extract import extract
from asmil.slides.discovery import find_slides
from ray_cluster import ray_cluster
from small_slides import write_slides
from test_extract import plan_for

pytest.importorskip("ray", reason="the extra 'ray' is not installed")


@pytest.fixture
def cluster():
    # the encoder of these tests must be known on the nodes, as asmil itself is
    with ray_cluster(Path(__file__).parent, num_cpus=1) as cluster:
        yield cluster


@pytest.mark.heavy
def test_a_lost_node_loses_no_slide(cluster, tmp_path):
    second = cluster.add_node(num_cpus=1)
    write_slides(tmp_path / "slides", 8, side_px=640)
    out = tmp_path / "features"
    slides = find_slides(tmp_path / "slides")
    results = extract(slides, out, plan_for("tiny_encoder:Slow"), RayEngine(cluster.address, cpus=1))
    done = [next(results)]
    cluster.remove_node(second, allow_graceful=False)
    assert len(list(out.glob("*.h5"))) < len(slides), "the node was to be lost in the middle of the work"
    done += list(results)
    assert sorted(result.slide for result in done) == sorted(slide.name for slide in slides)
    assert [result.error for result in done if result.error] == []
    assert len(list(out.glob("*.h5"))) == 8
    assert all(
        result.before for result in extract(slides, out, plan_for("tiny_encoder:Slow"), RayEngine(cluster.address))
    )
