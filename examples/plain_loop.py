"""ASMIL in a plain PyTorch loop: the model, the anchor, and its update after every optimizer step."""

import torch
from torch.nn import functional

import asmil


def synthetic_bags(n_bags: int = 16, width: int = 16) -> list[tuple[asmil.Bag, torch.Tensor]]:
    """Bags of which every second one has five tiles that differ."""
    draw = torch.Generator().manual_seed(0)
    pairs = []
    for number in range(n_bags):
        features = torch.randn(int(torch.randint(20, 40, (), generator=draw)), width, generator=draw)
        features[:5] += 2.0 * (number % 2)
        pairs.append((asmil.Bag(features, id=f"bag {number}"), torch.tensor(number % 2)))
    return pairs


def train(epochs: int = 5) -> tuple[asmil.MILModel, asmil.Anchor, list[float]]:
    """The trained model, its anchor, and the mean loss of every epoch."""
    torch.manual_seed(0)
    pairs = synthetic_bags()
    model = asmil.build("asmil", in_features=16, n_outputs=2, inner=32)
    anchor = asmil.Anchor(model, momentum=0.99, normalizer="nsf", weight=0.1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    history = []
    for _ in range(epochs):
        model.train()
        total = 0.0
        for bag, label in pairs:
            output = model(bag)
            loss = functional.cross_entropy(output.logits[None], label[None]) + anchor.loss(bag, output.scores)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            anchor.update(model)
            total += loss.item()
        history.append(total / len(pairs))
    return model, anchor, history


if __name__ == "__main__":
    trained, _, losses = train()
    print(losses)
    example, _ = synthetic_bags()[1]
    output = asmil.infer(trained, example)
    print(output.logits.softmax(0), trained.tile_map(output)[:5])
