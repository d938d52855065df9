"""A small server with the few addresses of the Hugging Face hub that uploading and downloading a repository need."""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit


class HubStandIn(ThreadingHTTPServer):
    """Repositories in memory; every request must bring the token."""

    daemon_threads = True

    def __init__(self, token: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.token = token
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.created: list[dict[str, Any]] = []

    @property
    def address(self) -> str:
        """What HF_ENDPOINT would be."""
        return f"http://127.0.0.1:{self.server_port}"

    def commit(self, repo_id: str) -> str:
        """The hash of the content of a repository."""
        names = sorted(self.repositories[repo_id])
        content = b"".join(name.encode() + self.repositories[repo_id][name] for name in names)
        return hashlib.sha1(content).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    server: HubStandIn
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = self._parts()
        if parts == ["api", "repos", "create"]:
            asked = json.loads(body)
            repo_id = f"{asked['organization']}/{asked['name']}"
            if not self._may(repo_id, known=True):
                return
            self.server.created.append(asked)
            self.server.repositories.setdefault(repo_id, {})
            self._json({"url": f"{self.server.address}/{repo_id}"})
        elif parts == ["api", "validate-yaml"]:
            self._json({"errors": [], "warnings": []})
        elif self._may(repo_id := "/".join(parts[2:4])):
            if parts[4] == "preupload":
                named = [one["path"] for one in json.loads(body)["files"]]
                self._json({"files": [{"path": n, "uploadMode": "regular", "shouldIgnore": False} for n in named]})
            elif parts[4] == "commit":
                for line in body.splitlines():
                    operation = json.loads(line)
                    if operation["key"] == "file":
                        value = operation["value"]
                        self.server.repositories[repo_id][value["path"]] = base64.b64decode(value["content"])
                sha = self.server.commit(repo_id)
                self._json({"commitUrl": f"{self.server.address}/{repo_id}/commit/{sha}", "commitOid": sha})

    def do_GET(self) -> None:
        parts = self._parts()
        if parts[:2] == ["api", "models"] and self._may(repo_id := "/".join(parts[2:4])):
            files = self.server.repositories[repo_id]
            if "tree" in parts:
                listed = [
                    {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                    for name, content in files.items()
                ]
                self._json(listed)
            else:
                siblings = [{"rfilename": name} for name in files]
                self._json({"id": repo_id, "sha": self.server.commit(repo_id), "siblings": siblings})
        elif parts[:2] != ["api", "models"] and self._may(repo_id := "/".join(parts[:2])):
            assert parts[2] == "resolve"
            content = self.server.repositories[repo_id]["/".join(parts[4:])]
            self._answer(200, content, "application/octet-stream", self.server.commit(repo_id))

    do_HEAD = do_GET

    def _parts(self) -> list[str]:
        return unquote(urlsplit(self.path).path).strip("/").split("/")

    def _may(self, repo_id: str, known: bool = False) -> bool:
        """Whether the request is answered; otherwise it was refused as the hub does."""
        if self.headers.get("Authorization") != f"Bearer {self.server.token}":
            self._answer(401, b'{"error": "Invalid username or password."}', "application/json")
            return False
        if not known and repo_id not in self.server.repositories:
            self._answer(404, b'{"error": "Repository not found"}', "application/json", error="RepoNotFound")
            return False
        return True

    def _json(self, value: Any) -> None:
        self._answer(200, json.dumps(value).encode(), "application/json")

    def _answer(self, status: int, body: bytes, kind: str, commit: str = "", error: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if commit:
            self.send_header("X-Repo-Commit", commit)
            self.send_header("ETag", f'"{hashlib.sha1(body).hexdigest()}"')
        if error:
            self.send_header("X-Error-Code", error)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Be quiet."""


@contextmanager
def hub_stand_in(token: str) -> Iterator[HubStandIn]:
    """A running server."""
    server = HubStandIn(token)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
