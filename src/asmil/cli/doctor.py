"""`asmil doctor`: what this machine can do."""

from __future__ import annotations

from asmil.cli.options import Json


def doctor(
    as_json: Json = False,
) -> None:
    """Report what this machine can do: GPU, memory, file formats, versions.

    Example: asmil doctor
    """
    from rich.markup import escape
    from rich.table import Table

    from asmil.console import print_json, results

    findings = _examine()
    if as_json:
        print_json(findings)
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    for key, value in findings.items():
        table.add_row(key, escape(str(value)))
    results().print(table)


def _examine() -> dict[str, str]:
    import importlib.util
    import os
    import platform
    import shutil
    from importlib.metadata import version

    import h5py
    import psutil
    import torch

    from asmil.engine.machine import choose_device
    from asmil.machine.bf16 import has_bf16
    from asmil.machine.cores import physical_cores
    from asmil.training.executors import executor_here
    from asmil.version import __version__

    memory = psutil.virtual_memory()
    findings = {
        "asmil": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": f"{physical_cores()} usable of {os.cpu_count()} threads; torch uses {torch.get_num_threads()}",
        "bf16 on the CPU": "yes" if has_bf16(torch.device("cpu")) else "no; use float32 there",
        "memory": f"{memory.available / 2**30:.1f} GiB free of {memory.total / 2**30:.1f}",
        "disk here": f"{shutil.disk_usage('.').free / 2**30:.1f} GiB free",
        "torch": torch.__version__,
        "gpu": _gpu(),
        "asmil trains with": executor_here(choose_device("auto")),
        "reads features": f"asmil, TRIDENT, CLAM, STAMP (.h5; HDF5 {h5py.version.hdf5_version}), torch tensors (.pt)",
        "reads slides": f"{_openslide()}, tifffile {version('tifffile')}",
        "encoders": f"{_encoders()} (`asmil encoders` lists them)",
    }
    for extra, package in {
        "hub": "huggingface_hub",
        "ray": "ray",
        "tracking": "tensorboard",
        "wandb": "wandb",
        "mlflow": "mlflow",
    }.items():
        findings[package] = "installed" if importlib.util.find_spec(package) else f"no (pip install 'asmil[{extra}]')"
    for package in ("numpy", "pandas", "scikit-learn", "safetensors", "pydantic"):
        findings[package] = version(package)
    return findings


def _openslide() -> str:
    try:
        import openslide
    except (ImportError, OSError) as error:
        return f"no OpenSlide ({str(error).splitlines()[0]}; pip install openslide-bin)"
    return f"OpenSlide {openslide.__library_version__}"


def _encoders() -> str:
    from asmil.slides.encoders.registry import encoders

    known = encoders().values()
    embedded = ", ".join(entry.name for entry in known if entry.embedded is not None)
    return f"{len(known)}, of them with weights in the installation: {embedded}"


def _gpu() -> str:
    import torch

    from asmil.machine.bf16 import has_bf16

    if not torch.cuda.is_available():
        return "none that torch can use; everything runs on the CPU"
    names = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        bf16 = "bf16" if has_bf16(torch.device("cuda", index)) else "no bf16"
        names.append(f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB, {bf16}")
    return "; ".join(names)
