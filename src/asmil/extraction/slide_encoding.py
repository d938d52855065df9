"""Slide encoders: code of the user that turns the tile features of a slide into one vector.

`module:callable` or `file.py:callable` is called without arguments and returns the encoder. That is called per slide:

    encoder(features, coords, tile_px_level0, mpp) -> vector

features: N x D, float32; coords: N x 2, int64, level-0 pixels, or None; tile_px_level0: side of a tile in level-0
pixels, or None; mpp: microns per level-0 pixel, or None. The vector has one axis (or leading axes of length 1). An
encoder that is a torch module is put into evaluation mode and onto the device.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel
from torch import Tensor, nn

from asmil.cohort.features import FeatureInfo, FeatureSource, Provenance, read_bag_and_info, write_slide_vector
from asmil.cohort.fingerprint import feature_contents
from asmil.cohort.open_features import info_of
from asmil.cohort.reader import open_features
from asmil.engine.jobs import Engine, Place, Worker
from asmil.errors import AsmilError
from asmil.files import remove_abandoned
from asmil.settings.documents import one_line, parse_json
from asmil.settings.made_from import DoneBefore, MadeFrom, Record, StoredContent
from asmil.settings.own_code import code_checksum, names_code, same_attribute
from asmil.slides.encoders.own_callable import imported
from asmil.slides.encoders.state import state_hash
from asmil.tables.names import file_in


@dataclass(frozen=True)
class EncodingJob:
    """A slide and the file that its vector becomes."""

    name: str
    source: FeatureSource
    out: Path


@dataclass(frozen=True)
class Encoded:
    """A finished slide. error: why it has no vector; before: an earlier command encoded it."""

    slide: str
    width: int | None = None
    error: str | None = None
    before: bool = False


@dataclass(frozen=True)
class SlideEncoderPlan:
    """Makes workers, in this process or another, from the name of the encoder."""

    encoder: str

    def __call__(self, worker: Place) -> Worker:
        """Make the encoder on the device of a worker."""
        device = torch.device(worker.device)
        encoder = self.load(device)
        digest = weights_hash(encoder)
        one_at_a_time = Lock()  # the next slide is read meanwhile; encoders may keep state

        def encode(job: EncodingJob) -> int:
            record = _made_from(self.encoder, digest, job.source).record()
            bag, info = read_bag_and_info(job.source, job.name)
            with one_at_a_time:
                vector = encoded(encoder, bag.features, bag.coords, info, device, self.encoder)
            tiles = record.contents["features"].checksum
            noted = {"slide_encoder": self.encoder, "weights_hash": digest, "tiles": tiles}
            about = json.dumps({**noted, "made_from": record.model_dump()})
            of_slide = {key: getattr(info, key) for key in ("mpp", "mpp_source", "slide_width_px", "slide_height_px")}
            made_by = Provenance(encoder=self.encoder, weights_hash=digest or None, extraction=about, **of_slide)
            write_slide_vector(job.out, vector, made_by)
            return len(vector)

        return encode

    def load(self, device: torch.device) -> Any:
        encoder = imported(self.encoder)
        return encoder.eval().requires_grad_(False).to(device) if isinstance(encoder, nn.Module) else encoder


def encode_slides(
    sources: Mapping[str, FeatureSource],
    out: Path,
    encoder: str,
    engine: Engine,
    done_before: DoneBefore | None = None,
) -> Iterator[Encoded]:
    """Encode every slide that has no vector yet; a slide that fails does not stop the others.

    done_before: decides about vectors that were made from something else; default: they are refused
    """
    done_before = done_before or DoneBefore()
    if not names_code(encoder):
        raise AsmilError(
            f"--encoder {encoder}: slide encoders are your own code, written module:callable or file.py:callable"
        )
    plan = SlideEncoderPlan(encoder)
    digest = weights_hash(plan.load(torch.device("cpu")))  # an encoder that cannot be made is refused before any slide
    out = out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    remove_abandoned(out)
    jobs, finished = [], []
    for name, source in sources.items():
        try:
            file = file_in(out, name, ".h5")
            made_from = _made_from(encoder, digest, source)
            if file.exists() and done_before.keeps(name, _record(file, made_from), made_from):
                finished.append(Encoded(name, before=True))
            else:
                jobs.append(EncodingJob(name, source.moved(Path.absolute), file))
        except AsmilError as error:
            finished.append(Encoded(name, error=str(error)))
    done_before.refuse(out)
    yield from finished
    if jobs:
        for outcome in engine.run(plan, jobs):
            name, why = outcome.job.name, outcome.error
            yield Encoded(name, outcome.result, why if why is None or name in why else f"{name}: {why}")


def encoded(
    encoder: Any, features: Tensor, coords: Tensor | None, info: FeatureInfo, device: torch.device, name: str
) -> NDArray[Any]:
    """The vector that an encoder returns for a slide; anything else that it returns is refused."""
    side = info.tile_side_level0()
    places = None if coords is None else coords.to(device)
    try:
        with torch.inference_mode():
            vector = encoder(features.to(device, torch.float32), places, side, info.mpp)
    except Exception as error:  # noqa: BLE001 - the user's code may raise anything
        raise AsmilError(
            f"{info.source}: the slide encoder {name} fails with {type(error).__name__}: {one_line(error)}; "
            f"it was given {len(features)} tiles of width {features.shape[1]}, coordinates: {coords is not None}, "
            f"tile side: {side}, mpp: {info.mpp}"
        ) from None
    values = vector.detach().float().cpu().numpy() if isinstance(vector, Tensor) else np.asarray(vector)
    if values.dtype.kind not in "fiu" or values.size == 0 or values.ndim == 0 or values.size != values.shape[-1]:
        got = f"shape {values.shape}" if values.dtype.kind in "fiu" else f"a {type(vector).__name__}"
        raise AsmilError(f"{info.source}: the slide encoder {name} returned {got}; return one vector per slide")
    if not np.isfinite(values).all():
        raise AsmilError(f"{info.source}: the slide encoder {name} returned values that are not finite")
    return values.reshape(-1).astype(np.float32)


def weights_hash(encoder: Any) -> str:
    """SHA-256 of the weights of an encoder; empty if it has none."""
    state = encoder.state_dict() if isinstance(encoder, nn.Module) else {}
    return state_hash(state) if state else ""


def _made_from(encoder: str, digest: str, source: FeatureSource) -> MadeFrom:
    values = {"encoder": encoder, "weights": digest, "encoder code": code_checksum(encoder)}
    return MadeFrom(values, feature_contents(source))


def _record(file: Path, now: MadeFrom) -> Record | None:
    """What a vector was made from; None if that is unknown. The same code may be named by another path now."""
    record = _stored_record(file)
    if record is None or now.values["encoder code"] is None:
        return record
    if same_attribute(str(record.values.get("encoder")), now.values["encoder"]):
        record.values["encoder"] = now.values["encoder"]
    return record


def _stored_record(file: Path) -> Record | None:
    with open_features(FeatureSource(file)) as opened:
        info = info_of(opened)
    noted = parse_json(info.extraction or "{}", _Noted, f"{file}: the attribute 'extraction'", "encode it again")
    if noted.made_from is not None or noted.tiles is None:
        return noted.made_from
    # by an earlier version, which did not record the coordinates, nor the code: without that, the vector is not kept
    return Record(
        values={"encoder": info.encoder, "weights": info.weights_hash or ""},
        contents={"features": StoredContent(checksum=noted.tiles), "coordinates": StoredContent()},
    )


class _Noted(BaseModel, extra="allow"):
    tiles: str | None = None
    made_from: Record | None = None
