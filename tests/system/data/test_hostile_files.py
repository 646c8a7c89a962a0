"""Files of strangers that would start programs, fill the memory, or put formulas into a spreadsheet."""

import csv
import io
import os
import re
import struct
import subprocess
import sys
import zipfile

import datasets
import numpy as np
import pandas as pd
import pytest
from error_messages import message
from PIL import Image

from fl_labelskew_plugins.data import files, npz, pictures
from fl_labelskew_plugins.data.table import Encoding, Feature, Table
from fl_labelskew_plugins.machine.text import comma_separated
from fl_labelskew_plugins.trained import predict


def write_png(file, width, height):
    Image.new("L", (width, height)).save(file)


def outcome(statement, *files, most=2**20):
    """The messages of a statement's LabelSkewErrors, for each ``file`` in turn, in one separate process.

    ``most``: kilobytes that the process may take, the modules that it imports included.
    """
    code = (
        "import re, sys\nfrom pathlib import Path\nfrom fl_labelskew_registry import LabelSkewError\n"
        "for file in sys.argv[1:]:\n"
        f"    try:\n        {statement}\n    except LabelSkewError as error:\n        print(error)\n"
        "kilobytes = int(re.search(r'VmHWM:\\s*(\\d+)', Path('/proc/self/status').read_text())[1])\n"
        f"assert kilobytes < {most}, kilobytes\n"
    )
    argv = [sys.executable, "-W", "ignore", "-c", code, *map(str, files)]
    return subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True, timeout=60).stdout


DECODE = "from fl_labelskew_plugins.data import pictures; pictures.decode(Path(file), size=64, channels=3)"


def test_a_picture_that_is_postscript_starts_no_program(tmp_path, monkeypatch):
    """Pillow would start Ghostscript, `gs`, for it: here a script that leaves a trace."""
    trace = tmp_path / "started"
    (tmp_path / "gs").write_text(f"#!/bin/sh\ntouch {trace}\n")
    (tmp_path / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    postscript = "%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n%%EOF\n"
    (tmp_path / "a.png").write_text(postscript)
    line = message(lambda: pictures.decode(tmp_path / "a.png", size=32, channels=3))
    assert "a.png: is not a valid image" in line
    assert not trace.exists()


def test_pictures_are_refused_before_they_are_read(tmp_path):
    """In one process, which takes little memory for all of them."""
    long, large = tmp_path / "long.png", tmp_path / "large.png"
    write_png(long, 1, 60_000)
    assert long.stat().st_size < 300
    write_png(large, 13_300, 13_300)  # 172 kB, which took 900 MB in each thread
    sparse = [tmp_path / "none.webp", tmp_path / "large.webp"]
    for file, start in zip(sparse, (b"", b"RIFF\0\0\0\x20WEBPVP8 "), strict=True):
        file.write_bytes(start)
        os.truncate(file, 4 * 10**9)  # Pillow reads a WEBP as a whole
    fifo = tmp_path / "fifo.png"
    os.mkfifo(fifo)
    *lines, last = outcome(DECODE, long, large, *sparse, fifo, most=200_000).splitlines()
    what = "is of 1 x 60000 pixels, and with a shorter side of 64 it would be of 64 x 3840000"
    assert lines == [
        f"{long}: {what}; use an image that is less elongated",
        f"{large}: is of 13300 x 13300 pixels; use a picture of at most 67108864 pixels",
        *(f"{file}: is of 4.0 GB; use a picture of at most 536.9 MB" for file in sparse),
    ]
    assert last.startswith(f"{fifo}: is not a valid image (")
    assert "it is a FIFO or device, not a regular file" in last


def test_a_picture_of_8192_x_8192_pixels_is_read(tmp_path):
    write_png(tmp_path / "large.png", 8192, 8192)
    assert outcome(DECODE, tmp_path / "large.png") == ""


def test_digest_of_a_large_picture_file_takes_little_memory(tmp_path):
    """A sound picture, and 400 MB after its end."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(4):
            write_png(tmp_path / name / f"{number}.png", 32, 32)
    os.truncate(tmp_path / "a" / "0.png", 400 * 10**6)
    code = "from fl_labelskew_plugins.data.image_folder import ImageFolder as F; "
    code += "F(F.Params(image_size=32)).load(Path(file), download=False, seed=0)"
    assert outcome(code, tmp_path, most=300_000) == ""


@pytest.mark.parametrize("kind", [2, 5, 7, 12])
def test_a_crafted_tiff_is_one_line(tmp_path, kind):
    """The tag that says where the pixels begin is of another type; Pillow raises TypeError."""
    file = tmp_path / "a.tif"
    Image.new("RGB", (24, 24)).save(file)
    patched(file, {(struct.pack("<HH", 273, 4), 2): bytes([kind])})
    line = message(lambda: pictures.decode(file, size=32, channels=3))
    assert re.search(r"a\.tif: is not a valid image \(.* integer\); use a BMP, GIF, ", line)


HEADER = "{'descr': %r, 'fortran_order': False, 'shape': %s, }"


def npy(header, content=b""):
    """An array's file with any header."""
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode("latin1") + content


def sound(array):
    content = io.BytesIO()
    np.save(content, array)
    return content.getvalue()


def archive(file, packed=zipfile.ZIP_DEFLATED, **members):
    """Write an archive of these arrays' files; ``x`` and ``y`` are sound unless they are among them."""
    members = {"x": sound(np.zeros((20, 4))), "y": sound(np.arange(20) % 2)} | members
    with zipfile.ZipFile(file, "w", packed) as stream:
        for name, content in members.items():
            stream.writestr(f"{name}.npy", content)
    return file


def patched(file, changes):
    """Change bytes of a file; ``changes``: by which ones they are found, with their distance."""
    content = bytearray(file.read_bytes())
    for (start, distance), value in changes.items():
        at = content.find(start)
        while at >= 0:
            content[at + distance : at + distance + len(value)] = value
            at = content.find(start, at + 1)
    file.write_bytes(content)
    return file


ENCRYPTED = {(b"PK\x03\x04", 6): b"\1", (b"PK\x01\x02", 8): b"\1"}


@pytest.mark.parametrize(
    ("write", "says"),
    [
        *[
            (lambda file, header=header: archive(file, x=npy(header)), "")
            for header in (
                "{'descr': (",  # TokenError
                "-" * 9000 + "1",  # MemoryError
                "{[]:1}",  # TypeError
                HEADER.replace("%r", "(" * 60 + "'<f4'" + ",)" * 60) % ((1,),),  # IndexError
            )
        ],
        (lambda file: archive(file, x=npy(HEADER % ("<f4", (True, 4)), bytes(16))), ""),  # TypeError
        (lambda file: archive(file, y=npy(HEADER % ("<U1", (20,)), b"\xff" * 80)), ""),  # SystemError
        (lambda file: patched(archive(file), ENCRYPTED), "is encrypted"),  # RuntimeError
        (lambda file: patched(archive(file, zipfile.ZIP_LZMA), {(b"PK\x03\x04", 60): b"\x5a" * 40}), ""),  # LZMAError
        (lambda file: archive(file, y=npy(HEADER % ("<U0", (3 * 10**8,)))), "y has type <U0, expected numbers"),
        (lambda file: archive(file, x=npy(HEADER % ("|S0", (3 * 10**8,)))), "x has type |S0, expected numbers"),
        (lambda file: archive(file, class_names=npy(HEADER % ("<U0", (3 * 10**8,)))), "class_names has type <U0"),
        (lambda file: archive(file, x=sound(np.zeros((20, 4), complex))), "x has type complex128, expected"),
        (lambda file: archive(file, x=npy(HEADER % ("<f4", (10**6, 1500)), bytes(4))), "but its header says 60000"),
    ],
)
def test_a_crafted_archive_is_one_line(tmp_path, write, says):
    file = tmp_path / "x.npz"
    write(file)
    line = message(lambda: datasets.load(npz.Npz, file))
    assert line.startswith(f"{file}: is not a valid .npz archive of plain arrays (")
    assert says in line
    assert line.endswith("; use one written by numpy.savez, without objects")


LOAD = "from fl_labelskew_plugins.data.{} import {} as D; D(D.Params()).load(Path(file), download=False, seed=0)"
LOAD_ARCHIVE, LOAD_TABLE = LOAD.format("npz", "Npz"), LOAD.format("table", "Table")


def test_an_archive_is_measured_by_its_converted_arrays(tmp_path):
    """A byte becomes two float32, or a text of 150 bytes and more; a single array of no bytes is not read."""
    arrays = {"x": np.zeros((2**20, 200), bool), "y": np.zeros(3 * 10**7, "S1")}
    packed = [archive(tmp_path / f"{name}.npz", **{name: sound(array)}) for name, array in arrays.items()]
    single = tmp_path / "single.npz"
    single.write_bytes(npy(HEADER % ("|S0", (3 * 10**8,))))
    *lines, last = outcome(LOAD_ARCHIVE, *packed, single).splitlines()
    for file, line in zip(packed, lines, strict=True):
        assert file.stat().st_size < 250_000
        assert line.startswith(f"{file}: ")
        assert " GB of memory, more than 100 times as many; use fewer samples, or an archive of numpy.savez" in line
    assert last.endswith("contains a single array; use an .npz archive with x and y")


def test_an_unused_array_may_have_any_type(tmp_path):
    others = {"when": sound(np.zeros(3, "datetime64[s]")), "note": npy(HEADER % ("|S0", (3 * 10**8,)))}
    file = archive(tmp_path / "x.npz", **others)
    assert npz.read_named(file)[0].keys() == {"x", "y"}


def test_a_parquet_file_that_unpacks_to_far_more_is_refused(tmp_path):
    """Many rows, or a long value that is stored once and is in every row; or a row with many values."""
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    large = " GB of memory, more than 1000 times as many; use fewer"
    says = {
        "rows": large,
        "text": "column f: contains b'000",
        "bytes of one length": large,
        "lists": "column f: contains nested values of type list<element: int8>; use data_args.features without",
    }
    files = [tmp_path / f"{kind}.parquet" for kind in says]
    for kind, file in zip(says, files, strict=True):
        count = 10**7 if kind == "rows" else 1100
        long = pa.scalar(b"0" * 10**6, pa.binary() if kind == "text" else pa.binary(10**6))
        values = np.zeros(count, np.int8) if kind == "rows" else pa.array([long.as_py()] * 50, long.type)
        if kind == "lists":
            values, count = pa.array([np.zeros(length, np.int8) for length in (2 * 10**7, 1)]), 2
        part = pa.table({"f": values, "label": np.arange(len(values), dtype=np.int8) % 2})
        with parquet.ParquetWriter(file, part.schema, compression="zstd") as stream:
            for _ in range(count // len(values)):
                stream.write_table(part)
    assert files[-1].stat().st_size < 10**5
    for file, what, line in zip(files, says.values(), outcome(LOAD_TABLE, *files).splitlines(), strict=True):
        assert line.startswith(f"{file}: "), line
        assert what in line


def test_a_table_of_too_many_columns_is_refused(tmp_path):
    file = tmp_path / "t.csv"
    names, values = ",".join(f"c{i}" for i in range(60_000)), ",".join("1" * 60_000)
    file.write_text(f"label,{names}\na,{values}\nb,{values}\n")
    says = "has 60001 columns; use at most 50000 columns, or an .npz archive (data set npz)"
    assert message(lambda: datasets.load(Table, file)).startswith(f"{file}: {says}")


def test_categories_count_before_they_become_features(monkeypatch):
    monkeypatch.setattr(files, "free_memory", lambda: 10**6)
    feature = Feature(name="f", categories=[str(i) for i in range(1000)])
    encoding = Encoding(label="label", group=None, missing="refuse", features=[feature])
    line = message(lambda: encoding.encoded(pd.DataFrame({"f": ["1"] * 100}), "t.csv"))
    assert line.startswith("t.csv: its features need 0.0 GB, but 0.0 GB are free")


def test_an_archive_that_unpacks_to_far_more_is_refused(tmp_path):
    """300 MB of zeros in 0.3 MB, and once more as two parts; an array that is not asked for is not unpacked."""
    file = tmp_path / "x.npz"
    np.savez_compressed(file, x=np.zeros(300 * 2**20, np.uint8), y=np.arange(3))
    assert file.stat().st_size < 10**6
    line = "x.npz: 306.2 kB become 629.1 MB of memory, more than 100 times "
    assert line in message(lambda: npz.read_archive(file))
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
    text = comma_separated(["=x"], [[formula] for formula in FORMULAS])
    assert [row[0] for row in csv.reader(io.StringIO(text))] == ["'=x", *ESCAPED]
