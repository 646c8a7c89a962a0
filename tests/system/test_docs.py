"""The commands that the documents show: each is read as a shell reads it, and parsed as its program parses it."""

import functools
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from commands import parsed
from fl_labelskew_registry import LabelSkewError, catalog

from fl_labelskew_plugins.cli.main import main
from fl_labelskew_plugins.cli.run import run_command
from fl_labelskew_plugins.recipe import parse, tables
from fl_labelskew_plugins.studies.sweep import plan

ROOT = Path(__file__).parents[2]
DOCS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
DOCS += [*sorted(ROOT.glob("docs/**/*.md")), *sorted(ROOT.glob("examples/*/README.md"))]
BLOCK = re.compile(r"^```([^`\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
GENERATED = re.compile(r"<!-- generated: .*?<!-- end of generated -->", re.DOTALL)
INLINE = re.compile(r"`((?:labelskew|fedml|python|make) [^`]+)`")
PROGRAMS = ("labelskew", "fedml", "python", "make")
# Programs become functions that tell their arguments; all that is called but is no function or builtin is not found.
SHELL = """
exec 3>&1 1>/dev/null 2>/dev/null
tell() { local IFS=$'\\x1f'; printf '%s\\x1e' "$*" >&3; }
started() { while [ $# -gt 0 ]; do case $1 in labelskew|fedml|python) tell "$@"; return;; esac; shift; done; }
for name in labelskew fedml python make; do eval "$name() { tell $name \\"\\$@\\"; }"; done
mpirun() { started "$@"; }; srun() { started "$@"; }
"""
TASK = {"SLURM_ARRAY_TASK_ID": "0", "PBS_ARRAY_INDEX": "0"}
HOST = ("list", "logs", "status", "stop")
"""What is the host's own after ``fedml run``."""
planned = functools.cache(plan.plan)  # documents name the same sweeps again and again


def spelled_out(line):
    """The commands of a line of a synopsis: ``a | b`` means either; text in brackets is included."""
    line = re.sub(r"\]\.\.\.|[\[\]]", "", line.partition("#")[0]).replace("...", "")
    either = re.search(r"\w+(?: \| \w+)+", line)
    if either is None:
        return [line]
    return [line[: either.start()] + word + line[either.end() :] for word in either[0].split(" | ")]


def commands(path):
    """The arguments of every command of a document, in order, and the number of lines that look like one."""
    text = GENERATED.sub("", path.read_text(encoding="utf-8"))
    scripts = [block for language, block in BLOCK.findall(text) if language in ("", "sh", "bash")]
    scripts = [re.sub(r"^(?!\$ ).*\n|^\$ ", "", s, flags=re.MULTILINE) if s.startswith("$ ") else s for s in scripts]
    scripts += INLINE.findall(BLOCK.sub("", text))
    found, typed = [], 0
    for script in scripts:
        lines = re.sub(r"\\\n\s*", "", script).splitlines()
        if not any(re.match(rf"({'|'.join(PROGRAMS)}|mpirun|srun|benchmarks/)\b", line) for line in lines):
            continue
        if " [" in script or " | " in script:
            lines = [command for line in lines for command in spelled_out(line)]
        told = subprocess.run(
            [shutil.which("bash"), "--norc", "-c", SHELL + "\n".join(lines)],
            env={"PATH": "/nowhere", "what": "RECIPE.yaml", **TASK},
            cwd="/", capture_output=True, text=True, check=False,
        )  # fmt: skip
        found += [line.split("\x1f") for line in told.stdout.split("\x1e")[:-1]]
        looks = re.compile(rf"\b({'|'.join(PROGRAMS)}) |^benchmarks/")
        typed += sum(looks.search(line.partition("#")[0]) is not None for line in lines)
    return found, typed


READ = {path: commands(path) for path in DOCS}
COMMANDS = [(path, words) for path, (found, _) in READ.items() for words in found]


def test_a_shell_finds_them_all():
    # less where a line begins otherwise, such as with the path of a file that cannot be executed
    assert {path.name: (len(found), typed) for path, (found, typed) in READ.items() if len(found) != typed} == {}
    assert len(READ[ROOT / "docs" / "results.md"][0]) >= 12
    assert len(COMMANDS) > 70


@pytest.mark.parametrize(("path", "words"), COMMANDS, ids=lambda v: v.stem if isinstance(v, Path) else " ".join(v)[:60])
def test_documented_commands_are_valid(path, words, fashion_mnist, monkeypatch, capsys):
    program, *args = words
    if program == "make":
        assert re.search(rf"^{args[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    elif program == "python":
        check_script(path, args, monkeypatch, capsys)
    elif program == "labelskew" or (args[0] != "launch" and args[1:2] not in ([], *([verb] for verb in HOST))):
        check_command(path, args, fashion_mnist)


def check_script(path, args, monkeypatch, capsys):
    file = next((folder / args[0] for folder in (ROOT, path.parent) if (folder / args[0]).exists()), None)
    if file is None:
        assert args[0] in ("download_isic.py", "resize_images.py")  # FLamby's
        return
    if file.parent.name == "benchmarks":
        monkeypatch.syspath_prepend(file.parent)  # as Python itself does
        monkeypatch.setattr(sys, "argv", [str(file), *args[1:], "--help"])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(file), run_name="__main__")
        assert ended.value.code == 0
        told = capsys.readouterr().out
        assert [word for word in args[1:] if word.startswith("-") and word not in told] == []


def check_command(path, args, fashion_mnist):
    """Verb, options and arguments; then, as far as they are no placeholders, the recipes, sweeps and names."""
    command, words = main, args
    while isinstance(command, click.Group):
        assert args[0] in command.commands
        command, args = command.commands[args[0]], args[1:]
    if not args:
        return  # the verb's name, in a sentence
    given = parsed(words)
    overrides = given.get("overrides", ())
    if command is run_command and given["recipe"] is None:
        return  # --resume
    for file in given.get("files", ()) or [given.get("recipe") or given.get("file")]:
        if file is not None:
            check_file(path, file, overrides, given.get("only"), fashion_mnist)
    for name in given.get("recipes", ()):
        if name.islower():
            parse.load(name, overrides)
    if command.name in ("methods", "optimizers", "partitions", "datasets", "models", "trackers", "check", "fake"):
        kind = command.name if command.name.endswith("s") else "datasets"
        names = [entry.name for entry in catalog.entries(kind)]
        assert given["name"] in (None, "NAME", "not_true", *names)


def check_file(path, file, overrides, only, fashion_mnist):
    here = next((folder / file for folder in (ROOT, path.parent) if (folder / file).exists()), None)
    if here is None:
        if "/" in str(file) and not str(file).startswith("mine/"):
            parse.load(file, overrides)  # a recipe's name
        return  # one of the reader's own
    if tables.is_table(here.read_text()):
        assert tables.read(here).cells
        return
    if only is None:
        try:
            parse.load(here, overrides)
        except LabelSkewError:
            # the document's own method, which is not installed here
            method = re.search(r"method_args.method=(\w+)", " ".join(overrides))
            method = method or re.search(r"\bmethod: (\w+)", here.read_text())
            text = path.read_text()
            if path.parent != ROOT:
                text += "".join(project.read_text() for project in path.parent.glob("pyproject.toml"))
            if not re.search(rf"^{method[1]} = \"", text, re.MULTILINE):
                raise
        return
    if "fmnist" in here.stem:
        overrides = [fashion_mnist, *overrides]
    assert planned(here, tuple(overrides), only=only)


def test_threat_model_names_existing_tests():
    text = (ROOT / "docs/threat_model.md").read_text(encoding="utf-8")
    source = "".join(path.read_text(encoding="utf-8") for path in ROOT.glob("tests/**/test_*.py"))
    names = set(re.findall(r"`(test_\w+)`", text))
    assert len(names) > 20
    assert not {name for name in names if f"def {name}(" not in source}
    assert all((ROOT / path).exists() for path in re.findall(r"`(tests/[\w/.]+)`", text))
