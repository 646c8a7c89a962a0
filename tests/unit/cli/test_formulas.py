import pytest
from fl_labelskew_registry import catalog

from fl_labelskew_plugins.cli import formulas


@pytest.mark.parametrize(
    ("latex", "text"),
    [
        (r"\frac{1}{B} \sum_n \ell_n", "1/B Σ_n ℓ_n"),
        (r"y = \frac{a + b}{c d}", "y = (a + b) / (c d)"),
        (r"y = \frac{a b}{\sum_c d}, \quad z", "y = a b / Σ_c d,\nz"),
        (r"2 \frac{a + b}{c} d", "2 ((a + b) / c) d"),
        (r"-\log \frac{e^x}{n^{-1/4}}", "-log(e^x / n^(-1/4))"),
        (r"w^{t+1}_{y_n} + z_{k,c}^2", "w^(t+1)_{y_n} + z_{k,c}²"),
        (r"\lVert M_c \rVert_F^2 \,\Vert\, \hat z^\top", "‖M_c‖_F² ‖ ẑᵀ"),
        (r"\bigl(\alpha \ne \Delta\bigr) \text{ if } \mathcal L", "(α ≠ Δ) if L"),
        (r"\frac{a", "(a / )"),
        ("", ""),
    ],
)
def test_plain(latex, text):
    assert formulas.plain(latex) == text


@pytest.mark.parametrize("width", [40, 80])
def test_every_method_has_an_equation_without_latex(width):
    for entry in catalog.entries("methods"):
        if entry.distribution == "fl-labelskew-plugins":
            lines = formulas.shown(catalog.load("methods", entry.name).__doc__, width)
            equations = [line for line in lines if line.startswith("    ")]
            assert equations, entry.name
            assert [line for line in equations if "\\" in line] == []
            assert max(map(len, lines)) <= width or width == 40


def test_a_list_keeps_its_lines():
    assert formulas.shown("A.\n\n- one\n- two\n\nArgs:\n    x: ``(B,)``", 80) == [
        "",
        "- one",
        "- two",
        "",
        "Args:",
        "    x: ``(B,)``",
    ]
