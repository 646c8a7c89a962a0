import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GENERATED = runpy.run_path(str(ROOT / "tools" / "generate.py"))["GENERATED"]


@pytest.mark.parametrize(("path", "text"), GENERATED, ids=[str(path.relative_to(ROOT)) for path, _ in GENERATED])
def test_generated_file_is_up_to_date(path, text):
    if path.read_text(encoding="utf-8") != text():  # without pytest's comparison, which takes minutes for a schema
        pytest.fail(f"{path.relative_to(ROOT)} is out of date: run `make generated` and commit the file")
