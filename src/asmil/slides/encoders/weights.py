"""Find the weights of an encoder: a given file, the folder of weights, the installation, or the hub.

The order is: the given file; `$ASMIL_WEIGHTS/<encoder>.safetensors` (or `.pth`, `.pt`, `.bin`; the folder is
`~/.cache/asmil/weights` unless the variable is set); weights that come with the installation; the Hugging Face
cache; a download from Hugging Face.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from asmil.errors import AsmilError
from asmil.slides.encoders.base import EncoderEntry

ENDINGS = (".safetensors", ".pth", ".pt", ".bin")


def weights_folder() -> Path:
    """The folder for manually downloaded weights."""
    return Path(os.environ.get("ASMIL_WEIGHTS") or "~/.cache/asmil/weights").expanduser()


def present_weights(entry: EncoderEntry) -> Path | None:
    """The file that would be used without a download; None if there is none."""
    candidates = (weights_folder() / f"{entry.name}{ending}" for ending in ENDINGS)
    if (path := next((path for path in candidates if path.is_file()), None)) is not None:
        return path
    return _cached(entry) if entry.embedded is None else entry.embedded()


def find_weights(entry: EncoderEntry, given: Path | None = None) -> Path:
    """The file of weights; downloaded from the hub if it is not found locally."""
    path = given or present_weights(entry)
    if path is not None:
        return path
    if entry.hub is None:
        raise AsmilError(f"encoder {entry.name}: the weights were not found; {how_to_get(entry)}")
    return _downloaded(entry, entry.hub)


def how_to_get(entry: EncoderEntry) -> str:
    """How to make the weights available, as a sentence."""
    ending = Path(entry.hub_file).suffix if entry.hub else ".pth"
    by_hand = f"put the file at {weights_folder() / entry.name}{ending} or give it with --weights"
    if entry.hub is None:
        return f"download them from {entry.url}, and {by_hand}"
    terms = f"accept the terms at {entry.url}, log in with `hf auth login`, and " if entry.gated else ""
    return (
        f"{terms}run the same command with an internet connection, or download {entry.hub_file} of "
        f"https://huggingface.co/{entry.hub} by other means and {by_hand}"
    )


def _cached(entry: EncoderEntry) -> Path | None:
    if entry.hub is None:
        return None
    try:
        from huggingface_hub import try_to_load_from_cache
    except ModuleNotFoundError:
        return None
    path = try_to_load_from_cache(entry.hub, entry.hub_file)
    return Path(path) if isinstance(path, str) else None


def _downloaded(entry: EncoderEntry, repository: str) -> Path:
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError, RepositoryNotFoundError
    except ModuleNotFoundError:
        raise AsmilError(
            f"encoder {entry.name}: downloading its weights needs huggingface_hub; "
            f"`pip install 'asmil[hub]'`, then {how_to_get(entry)}"
        ) from None
    # It would print every attempt; the outcome is reported below.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    try:
        return Path(hf_hub_download(repository, entry.hub_file))
    except RepositoryNotFoundError:
        # the answer of a gated repository if the user is not logged in or has not accepted its terms
        why = "is gated and denied access" if entry.gated else "does not exist"
    except LocalEntryNotFoundError:
        why = "cannot be reached"
    except EntryNotFoundError:
        why = f"has no file {entry.hub_file}"
    except Exception as error:  # noqa: BLE001  its HTTP library, whose errors these are, is another in other versions
        why = f"failed ({str(error).splitlines()[0] if str(error) else type(error).__name__})"
    raise AsmilError(
        f"encoder {entry.name}: the weights were not found and huggingface.co/{repository} {why}; {how_to_get(entry)}"
    )
