"""Who is answered, what a browser may do, and that nothing outside of the cohort can be read."""

import socket

import pytest

from asmil.errors import AsmilError
from asmil.viewer.access import OneTimeLinks, is_loopback
from asmil.viewer.app import require_page
from asmil.viewer.collection import Places, collect
from asmil.viewer.serve import bind


def test_other_names_are_refused(viewed, client):
    server = client(viewed / "cohort.csv")
    assert server.get("/api/about").status_code == 200
    for host in ("evil.example", "evil.example:8750", "127.0.0.1.evil.example", ""):
        assert server.get("/api/about", headers={"Host": host}).status_code == 421
    for host in ("localhost:8750", "[::1]:8750"):
        assert server.get("/api/about", headers={"Host": host}).status_code == 200


BY_A_PAGE_ELSEWHERE = [
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"},
    {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"},
    {"Origin": "https://evil.example"},
    {"Origin": "http://127.0.0.1:9999"},
    {"Origin": "null"},
]


@pytest.mark.parametrize("headers", BY_A_PAGE_ELSEWHERE)
def test_pages_of_other_sites_are_refused(viewed, client, headers):
    server = client(viewed / "cohort.csv")
    for path in ("/api/about", "/api/slides/0/region.jpg?x=0&y=0&side=9&px=9", "/api/slides/0/thumbnail.jpg"):
        assert server.get(path, headers=headers).status_code == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"},
        {"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"},
        {"Origin": "http://127.0.0.1:8750"},
        {"Origin": "http://localhost:9000", "Host": "localhost:9000"},  # through an SSH tunnel
    ],
)
def test_the_page_itself_and_the_user_are_answered(viewed, client, headers):
    assert client(viewed / "cohort.csv").get("/api/about", headers=headers).status_code == 200


def test_a_link_to_the_page_can_be_followed_but_not_framed(viewed, client, monkeypatch, tmp_path):
    (tmp_path / "index.html").write_text("page")
    monkeypatch.setattr("asmil.viewer.app.STATIC", tmp_path)
    server = client(viewed / "cohort.csv")
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert server.get("/", headers=headers).status_code == 200
    assert server.get("/", headers={**headers, "Sec-Fetch-Dest": "iframe"}).status_code == 403


def test_a_network_address_is_answered_with_a_session(viewed, client):
    links = OneTimeLinks()
    server = client(viewed / "cohort.csv", host="0.0.0.0", links=links)
    server.get("/", params={"token": links.token}, follow_redirects=False)
    assert server.get("/api/about", headers={"Host": "192.168.1.7:8750"}).status_code == 200
    assert server.get("/api/about", headers={"Host": "evil.example:8750"}).status_code == 421


def test_nothing_is_written_and_nothing_comes_from_elsewhere(viewed, client):
    server = client(viewed / "cohort.csv")
    assert server.post("/api/about").status_code == 405
    policy = server.get("/api/alive").headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy


@pytest.mark.parametrize(
    "path",
    [
        "/../pyproject.toml",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/..%2f..%2fetc%2fpasswd",
        "/app.py",
        "/static/app.py",
        "//etc/passwd",
        "/api/slides/../../etc/passwd",
        "/api/slides/99999",
        "/api/slides/-1",
        "/api/slides/0/tiles/99/0_0.jpg",
        "/api/slides/0/tiles/0/9999_0.jpg",
        "/api/slides/0/tiles/0/-1_0.jpg",
        "/api/slides/0/runs/0/map",
    ],
)
def test_only_what_is_listed_is_served(viewed, client, path):
    assert client(viewed / "cohort.csv").get(path).status_code == 404


@pytest.mark.parametrize("query", ["", "x=a&y=0&side=9&px=9", "x=0&y=0&side=0&px=9", "x=0&y=0&side=9&px=999999"])
def test_regions_have_limits(viewed, client, query):
    assert client(viewed / "cohort.csv").get(f"/api/slides/0/region.jpg?{query}").status_code == 400


def test_a_link_works_once_and_leaves_a_session(viewed, client):
    announced = []
    links = OneTimeLinks(announced.append)
    server = client(viewed / "cohort.csv", host="0.0.0.0", links=links)
    first = links.token
    assert server.get("/api/about").status_code == 403
    assert server.get("/", params={"token": "wrong"}).status_code == 403
    opened = server.get("/", params={"token": first}, follow_redirects=False)
    assert opened.status_code == 303
    assert "HttpOnly" in opened.headers["set-cookie"]
    assert server.get("/api/about").status_code == 200
    server.cookies.clear()
    assert server.get("/", params={"token": first}, follow_redirects=False).status_code == 403
    assert announced == [links.token]
    assert links.token != first


def test_loopback():
    assert all(map(is_loopback, ("127.0.0.1", "127.0.0.9", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "10.0.0.1", "::", "host.example")))


def test_a_taken_port_gives_the_next_one():
    taken, port = bind("127.0.0.1", 0)
    with taken:
        if port + 1 > 65535:
            pytest.skip("the last port")
        other, found = bind("127.0.0.1", port)
        with other:
            assert found > port


def test_an_address_of_another_machine_is_a_sentence():
    with pytest.raises(AsmilError, match=r"192\.0\.2\.1"):
        bind("192.0.2.1", 0)


def test_a_page_that_is_not_built_is_a_sentence(tmp_path):
    with pytest.raises(AsmilError, match="make viewer"):
        require_page(tmp_path)


def test_the_page_is_served(viewed, client, monkeypatch, tmp_path):
    for name in ("index.html", "viewer.js", "viewer.css"):
        (tmp_path / name).write_text(name)
    monkeypatch.setattr("asmil.viewer.app.STATIC", tmp_path)
    server = client(viewed / "cohort.csv")
    assert server.get("/").text == "index.html"
    assert server.get("/viewer.js").headers["content-type"].startswith("text/javascript")


def test_nothing_to_view_is_a_sentence(tmp_path):
    with pytest.raises(AsmilError, match=str(tmp_path)):
        collect([tmp_path], Places())
    with pytest.raises(AsmilError, match="nowhere"):
        collect([tmp_path / "nowhere"], Places())


def test_a_run_whose_manifest_is_gone_asks_for_it(viewed, tmp_path):
    import shutil

    run = tmp_path / "run"
    shutil.copytree(viewed / "abmil", run)
    config = run / "config.yaml"
    config.write_text(config.read_text().replace(str(viewed / "cohort.csv"), str(tmp_path / "gone.csv")))
    with pytest.raises(AsmilError, match="--cohort"):
        collect([run], Places())
    assert collect([run], Places(cohort=viewed / "cohort.csv")).slides


def test_the_address_is_printed_in_a_pipe_and_an_interrupt_ends_cleanly(viewed, tmp_path):
    import os
    import signal
    import subprocess
    import sys

    static = tmp_path / "static"
    static.mkdir()
    for name in ("index.html", "viewer.js", "viewer.css"):
        (static / name).write_text(name)
    script = (
        "import sys; from pathlib import Path; import asmil.viewer.app as app\n"
        f"app.STATIC = Path({str(static)!r}); app.require_page.__defaults__ = (app.STATIC,)\n"
        "from asmil.cli.main import main; main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, "view", str(viewed / "slides"), "--no-browser", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    port = int(line.rstrip("/\n").rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=60) as asked:
        asked.sendall(b"GET /api/alive HTTP/1.0\r\nHost: localhost\r\n\r\n")
        assert b"instance" in asked.makefile("rb").read()
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "Traceback" not in errors
