"""Packages that only some runs need: said before any process starts, with the command that installs them."""

import importlib
import shlex
import subprocess
import sys
from importlib import metadata

import pytest
from fl_labelskew_registry import LabelSkewError
from packaging.requirements import Requirement
from recipe_texts import SILOS, text_with

from fl_labelskew_plugins.machine import extras

SECURE = ["comm_args.secure_aggregation=true", "comm_args.certs=."]
GRPC = "which is not installed; to install it: pip install 'cryptography>=42' 'grpcio>=1.60' 'pycryptodome>=3.20'"
MISSING = [
    ("run", "grpc", SILOS, [], f"comm_args.backend: GRPC needs grpcio, {GRPC}"),
    ("validate", "grpc", SILOS, [], f"comm_args.backend: GRPC needs grpcio, {GRPC}"),
    ("run --dry-run", "Crypto", SILOS, SECURE, f"comm_args.secure_aggregation needs pycryptodome, {GRPC}"),
    ("run", "mpi4py", text_with(), ["comm_args.backend=MPI"], "comm_args.backend: MPI needs mpi4py, which is not"),
]


@pytest.mark.parametrize(("command", "module", "text", "overrides", "line"), MISSING, ids=lambda v: str(v)[:12])
def test_a_missing_extra_is_one_line_before_anything_starts(tmp_path, command, module, text, overrides, line):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / f"{module}.py").write_text("raise ImportError('not here')")
    (tmp_path / "recipe.yaml").write_text(text)
    words = [*command.split(), "recipe.yaml", *(word for override in overrides for word in ("--set", override))]
    path = {"PYTHONPATH": str(tmp_path / "site"), "PATH": "/usr/bin:/bin", "FL_LABELSKEW_LOG": "plain"}
    program = [sys.executable, "-m", "fl_labelskew_plugins.cli.main"]
    done = subprocess.run([*program, *words], cwd=tmp_path, env=path, capture_output=True, text=True, check=False)
    if command == "validate":
        assert (done.returncode, done.stderr) == (0, "")
        assert line in done.stdout
        assert done.stdout.startswith("recipe.yaml: ok; ")
    else:
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"error: {line}")
        assert not (tmp_path / "runs").exists()


def test_the_command_of_every_extra_installs_its_requirements():
    """Once each, with all bounds, as pip takes them."""
    for extra in ("grpc", "mpi", "onnx", "parquet", "privacy", "tensorboard"):
        words = shlex.split(extras.install(extra))
        assert words[:2] == ["pip", "install"]
        given = [Requirement(word) for word in words[2:]]
        assert len({requirement.name for requirement in given}) == len(given) > 0
        for requirement in given:
            assert metadata.version(requirement.name) in requirement.specifier


def test_load(monkeypatch):
    assert extras.load("grpc", "json", what="a test") is importlib.import_module("json")
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(LabelSkewError, match=r"^a test needs dp-accounting, which is .*'dp-accounting>=0.6', or not$"):
        extras.load("privacy", "dp_accounting", what="a test", otherwise=", or not")
