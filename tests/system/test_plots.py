import re
from xml.etree import ElementTree

import fl_labelskew_registry as registry
import numpy as np
import pytest
from PIL import Image

from fl_labelskew_plugins import plots
from fl_labelskew_plugins.plots import COLOURS, arrow, compare, curves, figure, heat_map, save, scatter, sphere


def picture(path):
    image = np.asarray(Image.open(path).convert("RGB"))
    assert image.shape[0] > 150
    assert image.shape[1] > 200
    return image


def test_tables_of_many_classes_and_clients(tmp_path):
    names = [str(c) for c in range(60)]
    plots.confusion(np.eye(60, dtype=int).tolist(), names, tmp_path / "a.png", title="t")
    heat_map(np.random.default_rng(0).integers(0, 5, (200, 60)), names, tmp_path / "b.png", title="t")
    for name in ("a.png", "b.png"):
        picture(tmp_path / name)


def test_a_confusion_matrix_is_coloured_by_the_share_of_each_class(tmp_path, drawn):
    plots.confusion([[3, 1], [0, 0]], ["a", "b"], tmp_path / "c.png", title="t")
    axes = drawn[0].axes[0]
    assert np.ma.filled(axes.images[0].get_array(), -1).tolist() == [[75, 25], [-1, -1]]
    assert [text.get_text() for text in axes.texts] == ["3", "1"]


def test_curves_with_gaps_and_without_tests(tmp_path):
    line = {"loss_terms": {"cross_entropy": 1.0}}
    lines = [{"round": 0, "accuracy": 0.3, "loss": 2.0, "personalised_accuracy": None, **line}, {"round": 1, **line}]
    lines.append({"round": 2, "accuracy": 0.6, "loss": 1.0, "personalised_accuracy": 0.9, "loss_terms": {"other": 1.0}})
    curves(lines, tmp_path / "c.png", title="t", client_models="local models")
    picture(tmp_path / "c.png")
    odd = {"round": 0, "accuracy": 0.1, "loss": None, "loss_terms": {"other": None}}
    curves([odd], tmp_path / "e.png", title="t", client_models="local models")
    picture(tmp_path / "e.png")  # of a run with losses that were not finite


OTHERS = ["mine", "fedrs+fedlc", "<b>", "$x$", *(f"method{number}" for number in range(8))]


def test_a_method_has_the_same_colour_in_all_pictures():
    rng = np.random.default_rng(0)
    alone = {name: plots.looks({name: name})[name] for name in [*plots.PLACES, *OTHERS]}
    assert {look.colour for look in alone.values()} == set(range(10))
    for size in range(2, 30):
        names = rng.choice(list(alone), size, replace=False).tolist()
        made = plots.looks({name: name for name in names})
        assert {name: look.colour for name, look in made.items()} == {name: alone[name].colour for name in names}
        assert all(made[name] == alone[name] for name in plots.PLACES if name in made)
        assert len({(look.mark, look.dash) for look in made.values()}) == size  # in black and white, too
        assert made == plots.looks({name: name for name in reversed(names)})


def test_every_built_in_method_has_a_colour():
    shipped = [
        entry.name
        for kind in ("methods", "optimizers")
        for entry in registry.entries(kind)
        if entry.distribution == "fl-labelskew-plugins" and entry.name != "FedAvg"  # that of plain methods
    ]
    assert sorted(shipped) == sorted(plots.PLACES)


def test_variants_have_the_colour_of_their_method():
    taus = {f"fedlc, tau={tau}": "fedlc" for tau in (0.5, 1, 2, 5)}
    beside, alone = plots.looks(taus | {"fedavg": "fedavg"}), plots.looks(taus)
    fedlc = plots.PLACES.index("fedlc")
    assert [beside[label] for label in taus] == [(fedlc, dash) for dash in range(4)]
    assert [alone[label] for label in taus] == [(fedlc + hue, 0) for hue in range(4)]
    assert len(set(plots.looks({f"a {number}": "a" for number in range(60)}).values())) == 60


def test_small_multiples_share_axes_and_a_legend(tmp_path, drawn):
    line = {1: [0.1], 2: [0.2]}
    many = {f"m{number}": line for number in range(12)}
    settings = {
        "pcdd": many,
        "iid": {"m11": line, "m3": {1: [0.5], 9: [1.0]}},
        "one round": {"new": {1: [0.1]}, "m0": {1: [0.1]}},
    }
    compare(settings | {"d": {}, "e": {}}, tmp_path / "a")
    (made,) = drawn
    assert [axes.get_title() for axes in made.axes] == ["pcdd", "iid", "one round", "d", "e"]
    assert {axes.get_gridspec().get_geometry() for axes in made.axes} == {(2, 3)}
    assert len({(axes.get_xlim(), axes.get_ylim()) for axes in made.axes}) == 1
    (legend,) = made.legends
    labels = [text.get_text() for text in legend.get_texts()]
    assert labels == [*many, "new"]
    looks = plots.looks({label: label for label in labels})
    for axes, groups in zip(made.axes, settings.values(), strict=False):
        colours = [(one.get_color(), one.get_marker()) for one in axes.lines]
        assert colours == [(COLOURS[looks[label].colour], looks[label].mark) for label in groups]
    assert made.get_supxlabel() == "round"  # no seeds, no bands


def test_a_band_is_one_standard_deviation_and_ends_where_accuracies_do(tmp_path, drawn):
    compare({"iid": {"fedavg": {1: [0.4, 0.6], 2: [0.9, 1.0], 3: [0.1, 0.1, 0.4]}}}, tmp_path / "a")
    (axes,) = drawn[0].axes
    assert axes.lines[0].get_ydata() == pytest.approx([50, 95, 20])
    ((path,),) = [band.get_paths() for band in axes.collections]
    ends = [path.vertices[path.vertices[:, 0] == r, 1] for r in (1, 2, 3)]
    lows_highs = [end for column in ends for end in (column.min(), column.max())]
    assert lows_highs == pytest.approx([50 - 200**0.5, 50 + 200**0.5, 95 - 50**0.5, 100, 20 - 300**0.5, 20 + 300**0.5])
    assert drawn[0].get_supxlabel() == "round; bands: ± standard deviation over seeds"


HOSTILE = ["<script>alert(1)</script>", "$x^{$", "a&b\x00\x1b[2J", "\u202eabc"]


def test_pictures_for_papers_have_the_column_width_and_text(tmp_path):
    width, curve = 3.25, {r: [r / 40, r / 35] for r in range(1, 21)}
    settings = {name: dict.fromkeys(("fedavg", "fedlc, tau=0.5, " * 5, *HOSTILE), curve) for name in HOSTILE[:2]}
    for name in ("a.png", "a.pdf", "a.svg", "b.PDF", "b.svg"):
        compare(settings, tmp_path / name, width=width)
    with Image.open(tmp_path / "a.png") as image:
        assert image.width == round(300 * width)
    pdf = (tmp_path / "a.pdf").read_bytes()
    assert float(re.search(rb"/MediaBox \[ 0 0 ([0-9.]+)", pdf)[1]) == pytest.approx(72 * width)
    assert b"/Type3" not in pdf
    assert b"/FontFile2" in pdf
    assert pdf == (tmp_path / "b.PDF").read_bytes()
    assert b"/CreationDate" not in pdf
    text = (tmp_path / "a.svg").read_text()
    assert text == (tmp_path / "b.svg").read_text()
    svg = ElementTree.fromstring(text)
    assert svg.get("width") == f"{72 * width:g}pt"
    words = "".join("".join(one.itertext()) for one in svg.iter("{http://www.w3.org/2000/svg}text"))
    for name in ("fedavg", "<script>alert(1)</script>", "$x^{$", "a&b??[2J", "?abc", "accuracy in %"):
        assert name in words
    assert not {one.tag.rpartition("}")[2] for one in svg.iter()} & {"script", "foreignObject", "image", "date"}


def test_the_frame_does_not_cut_lines(tmp_path, drawn):
    line = {"accuracy": 1.0, "personalised_accuracy": 0.0, "loss": 1.0, "loss_terms": {}}
    curves([{"round": r, **line} for r in range(2)], tmp_path / "a", title="t", client_models="local models")
    compare({"iid": {"fedavg": {1: [1.0], 2: [1.0]}}}, tmp_path / "b")
    for made in drawn:
        low, high = made.axes[0].get_ylim()
        assert high > 100
        assert low < (100 if made is drawn[1] else 0)
    legend = [text.get_text() for text in drawn[0].axes[0].get_legend().get_texts()]
    assert legend == ["global model, global test set", "local models, own test splits"]


@pytest.mark.filterwarnings("error")
def test_a_legend_of_many_lines_stands_above_the_chart(tmp_path):
    lines, words = 60, "fedavg, FedOpt, server_optimizer=adam, server_lr=0.01"
    compare({"iid": {"few": {1: [0.1], 2: [0.9]}}}, tmp_path / "few.png")
    groups = {f"{words}, {number}": {1: [0.1], 2: [number / lines]} for number in range(lines)}
    compare({"iid": groups}, tmp_path / "many.png")
    few, many = picture(tmp_path / "few.png"), picture(tmp_path / "many.png")
    assert many.shape[0] > few.shape[0] + 10
    assert many.shape[1] == few.shape[1]
    assert all((edge == 255).all() for edge in (many[0], many[-1], many[:, 0], many[:, -1]))  # nothing is cut off


def colours_of(path):
    """Every colour of a picture as hexadecimal text."""
    colours = Image.open(path).convert("RGB").getcolors(2**24)
    return {f"#{r:02x}{g:02x}{b:02x}" for _, (r, g, b) in colours}


def test_classes_have_distinct_colours_in_two_and_three_dimensions(tmp_path):
    points, labels = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32), np.arange(60) % 3
    made, axes = figure(4, 4)
    scatter(axes, points[:, :2], labels, classes=3)
    arrow(axes, 1.0, 1.0, "white")
    save(made, tmp_path / "flat.png")
    made, axes = figure(4, 4, subplot_kw={"projection": "3d"})
    sphere(axes)
    scatter(axes, points, labels, classes=3, solid=[0, 2])
    save(made, tmp_path / "sphere.png")
    for name in ("flat.png", "sphere.png"):
        colours = colours_of(tmp_path / name)
        assert set(COLOURS[:3]) <= colours
        assert not set(COLOURS[3:]) & colours


def test_labels_are_drawn_literally_and_powers_of_ten_as_powers(tmp_path):
    line = {"round": 0, "accuracy": 0.1, "loss": 1.0, "loss_terms": {"$\\frac{$": 1.0}}
    curves([line], tmp_path / "a.png", title="$x^{$", client_models="$")
    heat_map(np.array([[5, 1]]), ["$\\frac{$", "b"], tmp_path / "b.png", title="t")
    compare({"$\\frac{$": {f"$_{n}": {1: [0.1]} for n in range(12)}}, tmp_path / "c.png")
    made, axes = figure(4, 4)
    axes.loglog([1, 10, 100], [1, 10, 100], label="$\\frac{$")
    axes.legend()
    save(made, tmp_path / "d.png")
    assert [tick.get_parse_math() for tick in axes.get_xticklabels()] == [True] * len(axes.get_xticklabels())
    assert {f.name for f in tmp_path.iterdir()} == {"a.png", "b.png", "c.png", "d.png"}


def test_a_picture_that_cannot_be_drawn_is_a_warning(tmp_path, capsys, monkeypatch):
    def draw():
        raise ValueError("\n$\\frac{$\x1b[2J")

    monkeypatch.setenv(plots.PICTURES, "yes")
    plots.of_run(tmp_path / "a.png", draw)
    assert capsys.readouterr().err == f"warning: {tmp_path}/a.png cannot be drawn: ValueError: ?$\\frac{{$?[2J\n"
    monkeypatch.setenv(plots.PICTURES, "no")
    plots.of_run(tmp_path / "a.png", draw)
    assert capsys.readouterr().err == ""
