"""Python code that a user names: `module:name`, installed or in the current folder, or `file.py:name`."""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import os
import re
import sys
from pathlib import Path
from types import ModuleType

from asmil.errors import AsmilError


def names_code(name: str) -> bool:
    """Whether a name is written `module:name` or `file.py:name`.

    >>> names_code("uni"), names_code("my_encoders:build"), names_code("work/my encoders.py:build")
    (False, True, True)
    """
    return re.fullmatch(r"([\w.]+|.+\.py):[\w.]+", name) is not None


def same_attribute(name: str, given: str) -> bool:
    """Whether two names of code have the same attribute; the path of the file or the module may differ.

    >>> same_attribute("enc.py:build", "/lab/enc.py:build"), same_attribute("enc.py:build", "enc.py:other")
    (True, False)
    """
    return names_code(name) and names_code(given) and _attribute(name) == _attribute(given)


def _attribute(name: str) -> str:
    return name.rpartition(":")[2].rpartition(".")[2]


def code_checksum(name: str) -> str | None:
    """The SHA-256 of the code in the file of named code; comments and layout do not change it. None if it is unknown.

    name: `module:name` or `file.py:name`, importable
    """
    module = name.rpartition(":")[0]
    if not (module.endswith(".py") or os.sep in module):
        spec = importlib.util.find_spec(module)
        module = (spec and spec.origin) or ""
    path = Path(module)
    if path.suffix != ".py" or not path.is_file():
        return None
    return hashlib.sha256(ast.dump(ast.parse(path.read_bytes())).encode()).hexdigest()


def own_module(module: str, named_as: str) -> ModuleType:
    """The module of code that the user names; every call executes a file again.

    module: the module or file, before the colon
    named_as: the option and its value, for messages: `--method my_method.py:Mine`
    """
    try:
        if module.endswith(".py") or os.sep in module:
            return _from_file(module, named_as)
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())
        return importlib.import_module(module)
    except AsmilError:
        raise
    except ModuleNotFoundError as error:
        raise AsmilError(
            f"{named_as}: there is no module {error.name!r} in this folder or the installation; check its name"
        ) from None
    except Exception as error:  # noqa: BLE001  whatever the user's module does wrong
        raise AsmilError(f"{named_as}: importing {module} fails with {describe(error)}; correct it") from None


def describe(error: BaseException) -> str:
    """An error of the user's code on one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__


def _from_file(file: str, named_as: str) -> ModuleType:
    path = Path(file)
    if not path.is_file():
        raise AsmilError(f"{named_as}: there is no file {path}; correct its path")
    full = path.resolve()
    # files with the same name are different modules
    module_name = f"asmil_own_{full.stem}_{hashlib.sha256(str(full).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(module_name, full)
    if spec is None or spec.loader is None:
        raise AsmilError(f"{named_as}: {path} is not a Python file; give a file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[module_name]
        raise
    return module
