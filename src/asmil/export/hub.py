"""Bundles on the Hugging Face hub."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from asmil.errors import AsmilError
from asmil.export.bundle import write_bundle
from asmil.runs.bundle import BUNDLE_FILE, is_bundle


def download(
    repo_id: str,
    *,
    revision: str | None = None,
    token: str | None = None,
    cache_dir: Path | str | None = None,
    local_files_only: bool = False,
) -> Path:
    """The folder of a bundle: a local folder, or a repository of the hub, which is downloaded to its cache."""
    if Path(repo_id).is_dir():
        return Path(repo_id)
    with _reported(repo_id, "is neither a local folder nor a repository of the hub that can be downloaded"):
        from huggingface_hub import snapshot_download

        folder = snapshot_download(
            repo_id, revision=revision, token=token, cache_dir=cache_dir, local_files_only=local_files_only
        )
    if not is_bundle(Path(folder)):
        raise AsmilError(f"huggingface.co/{repo_id} is not a bundle of asmil: it has no {BUNDLE_FILE}")
    return Path(folder)


def upload(
    run: Path, repo_id: str, *, private: bool, token: str | None, message: str | None, method: str | None
) -> str:
    """Upload a run as a bundle to a repository of the hub, which is created if needed; returns the commit URL."""
    with tempfile.TemporaryDirectory() as name:
        folder = run if is_bundle(run) else write_bundle(run, Path(name) / "bundle", method)
        with _reported(repo_id, "cannot be uploaded"):
            from huggingface_hub import HfApi

            api = HfApi(token=token)
            api.create_repo(repo_id, private=private, exist_ok=True)
            done = api.upload_folder(
                repo_id=repo_id, folder_path=folder, commit_message=message or "Upload a model trained with asmil"
            )
    return str(done.commit_url)


@contextmanager
def _reported(repo_id: str, what: str) -> Iterator[None]:
    """Turn errors of the hub into one sentence. what: the sentence after the name of the repository."""
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it reports every attempt
    try:
        yield
    except ModuleNotFoundError:
        raise AsmilError(f"{repo_id}: the hub needs huggingface_hub; run pip install 'asmil[hub]'") from None
    except Exception as error:  # noqa: BLE001  errors of its HTTP library, which depends on its version
        why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise AsmilError(f"{repo_id} {what} ({why}); check the name, the connection and `hf auth login`") from None
