"""Tables as text: width, escaping in other formats, and LaTeX compiled by a real TeX."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from fl_labelskew_plugins.cli import table
from fl_labelskew_plugins.machine.text import comma_separated, wrapped

HEAD = ["method", "accuracy", "difference", "rounds"]
ROWS = [
    ["fedavg", "83.82 ± 1.85", "-", "9 (1.00x)"],
    ["map", "7.30 ± 14.41", "+3.48 [-19.52, 26.49]", "> 10"],
    ["moon\x1b[2J", "9.10", "-0.20 [-0.30, -0.10] worse", "10 (0.90x)"],
]
MARKS = [[0, 1, 0, 1], [0, 0, 0, 0], [0, 2, 0, 2]]
NASTY = 'a_b & 50 % of #1 {x} ~ ^ \\ $y$ <b> [z] * | " ± ä'


def test_plain_wraps_text_aligns_numbers_and_marks_the_best(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    assert table.plain(["a", "what"], [["long name", "word " * 9], ["b", ""]]).splitlines() == [
        "a          what",
        "long name  word word word word word word",
        "           word word word",
        "b",
    ]
    assert table.plain(HEAD[:2], [row[:2] for row in ROWS], [row[:2] for row in MARKS], words=1).splitlines() == [
        "method        accuracy",
        "fedavg    \x1b[1m83.82 ± 1.85\x1b[0m",
        "map       7.30 ± 14.41",
        "moon?[2J          \x1b[4m9.10\x1b[0m",
    ]


@pytest.mark.parametrize(("room", "stay"), [(80, [0, 1, 2, 3]), (60, [0, 1, 2]), (30, [0, 1])])
def test_columns_are_dropped_until_a_line_fits(room, stay, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(room))
    text, *note = table.plain(HEAD, ROWS, words=1, least=["not there", "rounds", "difference"]).split("\ncolumns")
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


def test_markdown_and_csv_quote():
    assert table.markdown(["a|<b>"], []) == "| a\\|\\<b> |\n| --- |"
    lines = table.markdown(["method", "best"], [["**a**|<b>", "1.0"], ["[x](y)", "2.0 | 3"]], [[0, 1], [0, 2]], 1)
    assert lines.splitlines() == [
        "| method | best |", "| --- | ---: |", "| \\*\\*a\\*\\*\\|\\<b> | **1.0** |", "| \\[x](y) | *2.0 \\| 3* |",
    ]  # fmt: skip
    assert comma_separated(["a", "b"], [["x,y", 'z"']]) == 'a,b\n"x,y","z"""'


def test_latex_lines():
    text = table.latex(["a_b", *HEAD[1:]], [["x & y", *ROWS[1][1:]], ["\\~^{}", *ROWS[2][1:]]], MARKS[1:], 1)
    assert text.splitlines()[1:] == [
        r"\begin{tabular}{lrrr}",
        r"\toprule",
        r"a\_b & accuracy & difference & rounds \\",
        r"\midrule",
        r"x \& y & 7.30 $\pm$ 14.41 & +3.48 {[}$-$19.52, 26.49{]} & $>$ 10 \\",
        r"\textbackslash{}\textasciitilde{}\textasciicircum{}\{\} & \itshape 9.10 & $-$0.20 {[}$-$0.30, $-$0.10{]}"
        r" worse & \itshape 10 (0.90x) \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="no pdflatex (apt-get install texlive-latex-recommended)")
def test_pdflatex_sets_the_table(tmp_path):
    rows = [[NASTY, *row] for row in [*ROWS[:2], ["moon", *ROWS[2][1:]]]] + [["[z]", "*", "-", "-", "3-20"]]
    text = table.latex([NASTY, *HEAD], rows, [[0, *line] for line in [*MARKS, [0] * 4]], 2)
    (tmp_path / "table.tex").write_text(text)
    (tmp_path / "paper.tex").write_text(
        "\\documentclass{article}\\usepackage[paperwidth=60cm]{geometry}\\usepackage{booktabs}\\begin{document}"
        "\\noindent\\input{table}\\end{document}"
    )
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "paper"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    log = (tmp_path / "paper.log").read_text(errors="replace")
    assert not re.search("undefined|Missing|Overfull", log)
