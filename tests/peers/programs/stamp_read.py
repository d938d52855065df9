"""STAMP reads feature files: features and microns go to standard output as JSON."""

import json
import sys
from pathlib import Path

import h5py
import torch
from stamp.modeling.data import BagDataset, detect_feature_type, get_coords

folder = Path(sys.argv[1])
files = sorted(folder.glob("*.h5"))
dataset = BagDataset(
    bags=[[file] for file in files], bag_size=None, ground_truths=torch.zeros(len(files), 1), transform=None
)
told = {"type": detect_feature_type(folder), "slides": {}}
for place, file in enumerate(files):
    features, coords_um, *_ = dataset[place]
    with h5py.File(file) as content:
        info = get_coords(content)
    told["slides"][file.stem] = {
        "shape": list(features.shape),
        "sum": float(features.double().sum()),
        "first_um": coords_um[0].tolist(),
        "tile_um": float(info.tile_size_um),
        "mpp": float(info.mpp),
    }
print(json.dumps(told))
