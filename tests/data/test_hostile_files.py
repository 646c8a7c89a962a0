"""Files of strangers that would start programs, fill the memory, or put formulas into a spreadsheet."""

import csv
import io
import os
import struct
import subprocess
import sys
import zipfile
import zlib

import numpy as np
import pytest
from fl_labelskew_registry import LabelSkewError

from fl_labelskew_plugins.cli import table
from fl_labelskew_plugins.data import npz, pictures
from fl_labelskew_plugins.trained import predict

EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n%%EOF\n"


def png(width, height):
    """A picture of one colour."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    pixels = zlib.compress((b"\0" + bytes(width)) * height, 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def test_a_picture_that_is_postscript_starts_no_program(tmp_path, monkeypatch):
    """Pillow would start Ghostscript, `gs`, for it: here a script that leaves a trace."""
    trace = tmp_path / "started"
    (tmp_path / "gs").write_text(f"#!/bin/sh\ntouch {trace}\n")
    (tmp_path / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (tmp_path / "a.png").write_bytes(EPS)
    with pytest.raises(LabelSkewError, match=r"a\.png: is not a sound image"):
        pictures.decode(tmp_path / "a.png", size=32, channels=3)
    assert not trace.exists()


def test_a_long_picture_is_refused_before_it_is_resized(tmp_path):
    file = tmp_path / "long.png"
    file.write_bytes(png(1, 60_000))
    assert file.stat().st_size < 300
    code = (
        "import resource, sys\nfrom pathlib import Path\n"
        "from fl_labelskew_plugins.data import pictures\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try:\n    pictures.decode(Path(sys.argv[1]), size=64, channels=3)\n"
        "except Exception as error:\n    print(error)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    line, kilobytes = subprocess.check_output([sys.executable, "-c", code, str(file)], text=True).splitlines()
    what = "is of 1 x 60000 pixels, and with a shorter side of 64 it would be of 64 x 3840000"
    assert line == f"{file}: {what}; use a picture that is less long"
    assert int(kilobytes) < 100_000


def lying(shape):
    """An archive whose array says that it has this shape, and has one number."""
    content = io.BytesIO()
    np.lib.format.write_array_header_1_0(content, {"descr": "<f4", "fortran_order": False, "shape": shape})
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("x.npy", content.getvalue() + bytes(4))
    return archive.getvalue()


def test_an_archive_whose_header_lies_is_refused_before_its_memory_is_taken(tmp_path):
    file = tmp_path / "x.npz"
    file.write_bytes(lying((10**6, 1500)))
    with pytest.raises(LabelSkewError) as error:
        npz.read_archive(file)
    assert str(error.value).startswith(f"{file}: is not a sound .npz archive of plain arrays (x is of ")
    assert "and its header says 6000000000)" in str(error.value)


def test_an_archive_that_unpacks_to_far_more_is_refused(tmp_path):
    """300 MB of zeros in 0.3 MB; an array that is not asked for is not unpacked."""
    file = tmp_path / "x.npz"
    np.savez_compressed(file, x=np.zeros(300 * 2**20, np.uint8), y=np.arange(3))
    assert file.stat().st_size < 10**6
    with pytest.raises(LabelSkewError, match=r"x\.npz: 0\.3 MB unpack to 315 MB, more than 100 times as many; use one"):
        npz.read_archive(file)
    assert npz.read_archive(file, ["y"])["y"].tolist() == [0, 1, 2]


FORMULAS = ["=cmd|' /C calc'!A0", "+1+cmd", "-2+3", "@sum(A1)", "\t=1", "-0.5", "-0.5 ± 0.1", "a=b", "-"]
ESCAPED = ["'" + text for text in FORMULAS[:5]] + FORMULAS[5:]


def test_formulas_in_tables_begin_with_an_apostrophe(tmp_path):
    out = tmp_path / "predictions.csv"
    with predict.writer(out, ["file", "class"]) as write:
        write([[text, -0.5] for text in FORMULAS])
    with out.open(newline="") as stream:
        assert [row[0] for row in csv.reader(stream)][1:] == ESCAPED
    assert "'-0.5" not in out.read_text()
    assert [row[0] for row in csv.reader(io.StringIO(table.comma_separated(["=x"], [[t] for t in FORMULAS])))] == [
        "'=x",
        *ESCAPED,
    ]
