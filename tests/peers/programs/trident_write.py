"""TRIDENT segments, tiles and extracts features: slides, job folder."""

import sys
from pathlib import Path

import torch
from drawn_encoder import TO_TENSOR, Pooled
from trident import Processor
from trident.patch_encoder_models.load import CustomInferenceEncoder
from trident.segmentation_models.load import segmentation_model_factory

slides, job = sys.argv[1:]
processor = Processor(job_dir=job, wsi_source=slides, wsi_ext=[".tif"], max_workers=0)
processor.run_segmentation_job(segmentation_model_factory("otsu"), seg_mag=5, device="cpu")
coords = processor.run_patching_job(target_magnification=20, patch_size=128, overlap=0)
encoder = CustomInferenceEncoder("drawn", Pooled(), TO_TENSOR, torch.float32)
processor.run_patch_feature_extraction_job(Path(coords).name, encoder, device="cpu", saveas="h5", batch_limit=64)
