import json
import shlex
import subprocess
import sys
from importlib import metadata

from packaging.requirements import Requirement
from recipe_texts import SILOS, text_with

from fl_labelskew_plugins.machine import extras

SECURE = ["comm_args.secure_aggregation=true", "comm_args.certs=."]
GRPC = "which is not installed; to install it: pip install 'cryptography>=42' 'grpcio>=1.60' 'pycryptodome>=3.20'"
MPI = ["comm_args.backend=MPI"]
MISSING = [
    ("run", "silos.yaml", [], f"comm_args.backend: GRPC needs grpcio, {GRPC}"),
    ("validate", "silos.yaml", [], f"comm_args.backend: GRPC needs grpcio, {GRPC}"),
    ("run", "one.yaml", MPI, "comm_args.backend: MPI needs mpi4py, which is not"),
    ("run --dry-run", "silos.yaml", SECURE, f"comm_args.secure_aggregation needs pycryptodome, {GRPC}"),
]
SCRIPT = """
import json, sys
sys.modules |= dict.fromkeys(("grpc", "mpi4py", "Crypto"))  # as if they were not installed
from click.testing import CliRunner
from fl_labelskew_plugins.cli.main import main
results = []
for words in json.loads(sys.argv[1]):
    if "--dry-run" in words:
        del sys.modules["grpc"]
    result = CliRunner().invoke(main, words)
    results.append((result.exit_code, result.stdout, result.stderr))
print(json.dumps(results))
"""
"""All commands in one new process, which has imported none of these packages; only the last command has gRPC."""


def test_a_missing_extra_is_one_line_before_anything_starts(tmp_path):
    for name, text in (("silos.yaml", SILOS), ("one.yaml", text_with())):
        (tmp_path / name).write_text(text)
    commands = [
        [*command.split(), recipe, *(word for override in overrides for word in ("--set", override))]
        for command, recipe, overrides, _ in MISSING
    ]
    program = [sys.executable, "-c", SCRIPT, json.dumps(commands)]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=True)
    for (command, *_, line), (code, out, err) in zip(MISSING, json.loads(done.stdout), strict=True):
        if command == "validate":
            assert (code, err) == (0, "")
            assert line in out
            assert out.startswith("silos.yaml: ok; ")
        else:
            assert (code, out) == (2, "")
            assert err.startswith(f"error: {line}")
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
