"""ASMIL as a LightningModule: the anchor is a child module, so checkpoints hold it."""

import lightning
import torch
from plain_loop import synthetic_bags
from torch.nn import functional
from torch.utils.data import DataLoader

import asmil


class AnchoredMIL(lightning.LightningModule):
    """A model and its anchor; only the model is trained."""

    def __init__(self, in_features: int = 16, n_outputs: int = 2, lr: float = 1e-3) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.lr = lr
        self.model = asmil.build("asmil", in_features=in_features, n_outputs=n_outputs, inner=32)
        self.anchor = asmil.Anchor(self.model, momentum=0.99, weight=0.1)

    def training_step(self, batch: tuple[asmil.Bag, torch.Tensor], number: int) -> torch.Tensor:
        """Cross-entropy of one bag, and the anchor's loss."""
        bag, label = batch
        output = self.model(bag.to(self.device))
        loss = functional.cross_entropy(output.logits[None], label.to(self.device)[None])
        return loss + self.anchor.loss(bag.to(self.device), output.scores)

    def on_train_batch_end(self, outputs: object, batch: object, number: int) -> None:
        """The optimizer has stepped: the anchor follows."""
        self.anchor.update(self.model)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The anchor's parameters are averages, so the optimizer gets the model's only."""
        return torch.optim.Adam(self.model.parameters(), lr=self.lr)


def train(folder: str, epochs: int = 2) -> tuple[AnchoredMIL, str]:
    """The trained module, and the checkpoint that holds it."""
    lightning.seed_everything(0, verbose=False)
    module = AnchoredMIL()
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        default_root_dir=folder,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, DataLoader(synthetic_bags(), batch_size=None))
    path = f"{folder}/anchored.ckpt"
    trainer.save_checkpoint(path)
    return module, path


if __name__ == "__main__":
    _, checkpoint = train(".")
    print(AnchoredMIL.load_from_checkpoint(checkpoint, weights_only=True).anchor)
