"""The examples in the docstrings of all modules."""

import doctest
import importlib
from pathlib import Path

import fl_labelskew_registry
import pytest
import torch

import fl_labelskew_plugins

MODULES = [
    ".".join([package.__name__, *path.relative_to(root).with_suffix("").parts])
    for package in (fl_labelskew_plugins, fl_labelskew_registry)
    for root in [Path(package.__file__).parent]
    for path in sorted(root.rglob("*.py"))
    if ">>> " in path.read_text("utf-8")
]


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_in_the_docstrings(module):
    failed, attempted = doctest.testmod(importlib.import_module(module), extraglobs={"torch": torch})
    assert (failed, attempted > 0) == (0, True)
