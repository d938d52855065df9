"""What CLAM and the methods built on its code call the layers of their embedding and attention."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product


def clam_layouts() -> Iterator[dict[str, str]]:
    """Their names by ours (`embedding.layers.0`, `attention.value`, `.weight` and, if there is one, `.gate`).

    The attention network is entry 3 of a sequence, and entry 2 in old checkpoints without dropout. In the plain form
    dropout moves the last layer from entry 2 to 3.
    """
    for entry, last in product((3, 2), (None, 2, 3)):
        network = f"attention_net.{entry}"
        layers = {"embedding.layers.0": "attention_net.0"}
        if last is None:
            layers |= {
                "attention.value": f"{network}.attention_a.0",
                "attention.gate": f"{network}.attention_b.0",
                "attention.weight": f"{network}.attention_c",
            }
        else:
            layers |= {"attention.value": f"{network}.module.0", "attention.weight": f"{network}.module.{last}"}
        yield layers
