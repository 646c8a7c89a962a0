import doctest
import importlib
from pathlib import Path

import fl_labelskew_registry
import pytest
import torch

import fl_labelskew_plugins

EXAMPLES = {
    ".".join(file.relative_to(root.parent).with_suffix("").parts).removesuffix(".__init__"): text.count(">>> ")
    for root in (Path(package.__file__).parent for package in (fl_labelskew_plugins, fl_labelskew_registry))
    for file in sorted(root.rglob("*.py"))
    if ">>> " in (text := file.read_text())
}


@pytest.mark.parametrize("module", EXAMPLES)
def test_the_examples_in_the_docstrings(module, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = doctest.testmod(importlib.import_module(module), extraglobs={"torch": torch})
    assert done == (0, EXAMPLES[module])  # none fails, none is where doctest does not look
