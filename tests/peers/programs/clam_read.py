"""CLAM loads features of asmil and trains CLAM-SB on them for a few steps: table, feature folder."""

import json
import sys

import torch
from dataset_modules.dataset_generic import Generic_MIL_Dataset
from models.model_clam import CLAM_SB

table, folder = sys.argv[1:]
dataset = Generic_MIL_Dataset(
    csv_path=table,
    data_dir=folder,
    shuffle=False,
    seed=1,
    print_info=False,
    label_dict={"normal": 0, "tumor": 1},
    patient_strat=False,
    ignore=[],
)
width = dataset[0][0].shape[1]
torch.manual_seed(0)
model = CLAM_SB(embed_dim=width, n_classes=2, k_sample=2)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-4)
losses = []
for _ in range(4):
    for place in range(len(dataset)):
        features, label = dataset[place]
        logits, _, _, _, instances = model(features, label=torch.tensor([label]), instance_eval=True)
        loss = torch.nn.functional.cross_entropy(logits, torch.tensor([label])) + instances["instance_loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
dataset.load_from_h5(True)
shapes = {str(dataset.slide_data["slide_id"][n]): list(dataset[n][2].shape) for n in range(len(dataset))}
print(json.dumps({"losses": losses, "shapes": shapes}))
