"""Tables as text: numbers under each other, what fits a line, and LaTeX that a real TeX sets."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from fl_labelskew_plugins.cli import table
from fl_labelskew_plugins.machine.text import shortened, wrapped

HEAD = ["method", "accuracy", "difference", "rounds"]
ROWS = [
    ["fedavg", "83.82 ± 1.85", "-", "9 (1.00x)"],
    ["map", "7.30 ± 14.41", "+3.48 [-19.52, 26.49]", "> 10"],
    ["moon", "9.10", "-0.20 [-0.30, -0.10] worse", "10 (0.90x)"],
]
MARKS = [[0, 1, 0, 1], [0, 0, 0, 0], [0, 2, 0, 2]]
NASTY = 'a_b & 50 % of #1 {x} ~ ^ \\ $y$ <b> [z] * | " ± ä'


def test_plain_tables_wrap_their_last_column(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    text = table.plain(["a", "what"], [["long name", "word " * 9], ["b", ""]])
    assert text.splitlines() == [
        "a          what",
        "long name  word word word word word word",
        "           word word word",
        "b",
    ]


def test_markdown_and_csv_quote():
    assert table.markdown(["a|<b>"], []) == "| a\\|\\<b> |\n| --- |"
    assert table.markdown(["a"], [["x|y"]]) == "| a |\n| --- |\n| x\\|y |"
    assert table.comma_separated(["a", "b"], [["x,y", 'z"']]) == 'a,b\n"x,y","z"""'


def test_numbers_stand_under_each_other_at_their_points():
    head, rows = table.aligned(HEAD, ROWS, 1)
    assert table.plain(head, rows).splitlines() == [
        "method       accuracy                  difference        rounds",
        "fedavg  83.82 ±  1.85      -                          9 (1.00x)",
        "map      7.30 ± 14.41  +3.48 [-19.52, 26.49]       > 10",
        "moon     9.10          -0.20 [-0.30, -0.10] worse    10 (0.90x)",
    ]


def test_on_a_terminal_the_best_is_bold_and_the_second_underlined():
    head, rows = table.aligned(HEAD[:2], [row[:2] for row in ROWS], 1)
    _, first, second, third = table.plain(head, rows, [row[:2] for row in MARKS]).splitlines()
    assert (first, second) == ("fedavg  \x1b[1m83.82 ±  1.85\x1b[0m", "map      7.30 ± 14.41")
    assert third == "moon     \x1b[4m9.10\x1b[0m"


@pytest.mark.parametrize(("room", "stay"), [(80, [0, 1, 2, 3]), (60, [0, 1, 2]), (45, [0, 1, 3]), (30, [0, 1])])
def test_columns_are_dropped_until_a_line_fits(room, stay, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(room))
    head, rows = table.aligned(HEAD, ROWS, 1)
    text, *note = table.plain(head, rows, wrap=False, least=["not there", "rounds", "difference"]).split("\ncolumns")
    assert text.split("\n")[0].split() == [HEAD[i] for i in stay]
    assert all(name in note[0].split(" (")[0] for i, name in enumerate(HEAD) if i not in stay)
    assert max(map(len, text.splitlines())) <= room


def test_columns_that_may_not_be_dropped_continue_below(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    head = ["client", *(f"class-{number}" for number in range(9)), "all"]
    blocks = table.plain(head, [["north", *"123456789", "45"]]).split("\n\n")
    assert [block.split("\n")[1].split() for block in blocks] == [
        ["north", "1", "2", "3"], ["north", "4", "5", "6"], ["north", "7", "8", "9", "45"],
    ]  # fmt: skip
    assert all(len(line) <= 40 for block in blocks for line in block.splitlines())


def test_no_word_is_broken_and_long_names_lose_their_middle(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    path, text = "a-long-name" * 9 + ".png", "predicted--by the-model " * 3
    head, *lines = table.plain(["file", "class found"], [[path, text], ["b", "x"]]).splitlines()
    name, first = lines[0].split()[:2]
    assert name == shortened(path, len(name))
    assert [first, *" ".join(lines[1:-1]).split()] == text.split()
    assert lines[-1].split() == ["b", "x"]
    assert max(map(len, [head, *lines])) <= 60


def test_a_sentence_wraps_with_an_indent_and_keeps_per_cent_signs(monkeypatch):
    monkeypatch.setenv("COLUMNS", "34")
    assert wrapped("  clients  mean 72.70 %, worst 64.37 %: coast", " " * 11).splitlines() == [
        "  clients  mean 72.70 %, worst",
        "           64.37 %: coast",
    ]


def test_in_a_pipe_rows_are_whole_lines(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(sys.__stdout__, "fileno", lambda: os.open(os.devnull, os.O_RDONLY), raising=False)
    head, row = table.plain(["name", "what"], [["x" * 200, "word " * 100]], least=["what"]).splitlines()
    assert (head.split(), row) == (["name", "what"], "x" * 200 + "  " + ("word " * 100).rstrip())


def test_strangers_words_mean_nothing_in_markdown():
    lines = table.markdown(["method", "best"], [["**a**|<b>", "1.0"], ["[x](y)", "2.0 | 3"]], [[0, 1], [0, 2]], 1)
    assert lines.splitlines() == [
        "| method | best |", "| --- | ---: |", "| \\*\\*a\\*\\*\\|\\<b> | **1.0** |", "| \\[x](y) | *2.0 \\| 3* |",
    ]  # fmt: skip


def test_latex_lines():
    text = table.latex(["a_b", *HEAD[1:]], [["x & y", *ROWS[1][1:]], ["\\~^{}", *ROWS[2][1:]]], MARKS[1:], 1)
    assert text.splitlines()[3:] == [
        r"\begin{tabular}{lS[table-format=1.2(4)]S[table-format=+1.2]@{~}lS[table-format=2.0]@{~}l}",
        r"\toprule",
        r"a\_b & {accuracy} & \multicolumn{2}{c}{difference} & \multicolumn{2}{c}{rounds} \\",
        r"\midrule",
        r"x \& y & 7.30 \pm 14.41 & +3.48 & {[}$-$19.52, 26.49{]} & {$>$ 10} & \\",
        r"\textbackslash{}\textasciitilde{}\textasciicircum{}\{\} & \itshape 9.10 & -0.20 & {[}$-$0.30, $-$0.10{]}"
        r" worse & \itshape 10 & \itshape (0.90x) \\",
        r"\bottomrule",
        r"\end{tabular}}",
    ]


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("pdflatex"), reason="no pdflatex (apt-get install texlive-science)")
def test_a_real_tex_sets_the_table_with_bold_and_italic_numbers_of_vector_fonts(tmp_path):
    rows = [[NASTY, *row] for row in ROWS] + [["[z]", "*", "-", "-", "3-20"]]
    (tmp_path / "table.tex").write_text(
        table.latex([NASTY, *HEAD], rows, [[0, *line] for line in [*MARKS, [0] * 4]], 2)
    )
    (tmp_path / "paper.tex").write_text(
        "\\pdfcompresslevel=0 \\pdfobjcompresslevel=0 \\documentclass{article}\\usepackage[paperwidth=60cm]{geometry}"
        "\\usepackage{booktabs, siunitx}\\begin{document}\\noindent\\input{table}\\end{document}"
    )
    wide = os.environ | {"max_print_line": "1000"}
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "paper"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False, env=wide)
    assert done.returncode == 0, done.stdout[-2000:]
    log = (tmp_path / "paper.log").read_text(errors="replace")
    assert not re.search("undefined|Missing|Overfull|siunitx Warning", log)
    fonts = set(re.findall(rb"/FontName /[A-Z]+\+(\w+)", (tmp_path / "paper.pdf").read_bytes()))
    assert {b"CMR10", b"CMBX10", b"CMTI10"} <= fonts  # upright, bold, italic
    assert set(re.findall(r"(\w+)\.\d+pk", log)) <= {"tcrm1000"}  # bitmaps: of the dollar sign alone, not of ± and -
