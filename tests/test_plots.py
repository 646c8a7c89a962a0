import numpy as np
import pytest
from PIL import Image

from fl_labelskew_plugins import plots
from fl_labelskew_plugins.plots import COLOURS, arrow, colour, compare, curves, figure, heat_map, save, scatter, sphere


def picture(path):
    image = np.asarray(Image.open(path).convert("RGB"))
    assert image.shape[0] > 150
    assert image.shape[1] > 200
    return image


def test_heat_map_of_few_and_many_clients(tmp_path):
    counts = np.array([[5, 0, 3], [0, 9, 1]])
    heat_map(counts, ["a", "b", "c"], tmp_path / "a.png", title="t")
    few = picture(tmp_path / "a.png")
    assert len(np.unique(few.reshape(-1, 3), axis=0)) > 20
    heat_map(
        np.random.default_rng(0).integers(0, 5, (200, 60)), [str(c) for c in range(60)], tmp_path / "b.png", title="t"
    )
    picture(tmp_path / "b.png")
    assert {f.name for f in tmp_path.iterdir()} == {"a.png", "b.png"}


def test_a_heat_map_has_no_more_clients_than_dots(tmp_path, monkeypatch):
    pictures = drawn(monkeypatch)
    heat_map(np.ones((2000, 3), int), ["a", "b", "c"], tmp_path / "a.png", title="t")
    axes = pictures[0].axes[0]
    assert axes.images[0].get_array().shape == (3, 1000)
    assert (axes.get_xlim(), axes.get_xlabel()) == ((-0.5, 1999.5), "client, 1 of 2 shown")


def test_a_confusion_matrix_is_coloured_by_the_share_of_each_class(tmp_path, monkeypatch):
    plots.confusion([[3, 1], [0, 0]], ["<a>", "$b$"], tmp_path / "a.png", title="t")
    picture(tmp_path / "a.png")
    plots.confusion(np.eye(60, dtype=int).tolist(), [str(c) for c in range(60)], tmp_path / "b.png", title="t")
    picture(tmp_path / "b.png")
    pictures = drawn(monkeypatch)
    plots.confusion([[3, 1], [0, 0]], ["a", "b"], tmp_path / "c.png", title="t")
    axes = pictures[0].axes[0]
    assert np.ma.filled(axes.images[0].get_array(), -1).tolist() == [[75, 25], [-1, -1]]
    assert [text.get_text() for text in axes.texts] == ["3", "1"]


def test_curves_with_gaps_and_without_tests(tmp_path):
    line = {"loss_terms": {"cross_entropy": 1.0}}
    lines = [{"round": 0, "accuracy": 0.3, "loss": 2.0, "personalised_accuracy": None, **line}, {"round": 1, **line}]
    lines.append({"round": 2, "accuracy": 0.6, "loss": 1.0, "personalised_accuracy": 0.9, "loss_terms": {"other": 1.0}})
    curves(lines, tmp_path / "c.png", title="t", own_models="local models")
    picture(tmp_path / "c.png")
    odd = {"round": 0, "accuracy": 0.1, "loss": None, "loss_terms": {"other": None}}
    curves([odd], tmp_path / "e.png", title="t", own_models="local models")
    picture(tmp_path / "e.png")  # of a run whose losses were not finite


def test_compare_draws_a_line_a_group(tmp_path):
    compare({"iid": {"fedavg": {1: [0.1, 0.2], 2: [0.3, 0.4]}, "fedrs": {1: [0.5], 2: [0.6]}}}, tmp_path / "d.png")
    picture(tmp_path / "d.png")


def drawn(monkeypatch):
    """Pictures as they are saved."""
    made = []
    monkeypatch.setattr(plots, "save", lambda picture, path: made.append(picture))
    return made


def test_a_label_has_one_colour_in_all_charts(tmp_path, monkeypatch):
    pictures = drawn(monkeypatch)
    line = {1: [0.1], 2: [0.2]}
    many = {f"m{number}": line for number in range(12)}
    compare({"pcdd": many, "iid": {"m11": line, "m3": line}, "iid, again": {"new": line, "m0": line}}, tmp_path / "a")
    (made,) = pictures
    assert [axes.get_title() for axes in made.axes] == ["pcdd", "iid", "iid, again"]
    charts = [{one.get_label(): (one.get_color(), one.get_linestyle()) for one in a.lines} for a in made.axes]
    assert charts[1] == {name: charts[0][name] for name in ("m11", "m3")}
    assert charts[2]["m0"] == charts[0]["m0"]
    assert len(set(charts[0].values()) | {charts[2]["new"]}) == 13
    (legend,) = made.legends
    assert [text.get_text() for text in legend.get_texts()] == [*many, "new"]


def test_the_frame_does_not_cut_a_line_at_either_end(tmp_path, monkeypatch):
    pictures = drawn(monkeypatch)
    line = {"accuracy": 1.0, "personalised_accuracy": 0.0, "loss": 1.0, "loss_terms": {}}
    curves([{"round": r, **line} for r in range(2)], tmp_path / "a", title="t", own_models="local models")
    compare({"iid": {"fedavg": {1: [1.0], 2: [1.0]}}}, tmp_path / "b")
    for made in pictures:
        low, high = made.axes[0].get_ylim()
        assert high > 100
        assert low < (100 if made is pictures[1] else 0)
    legend = [text.get_text() for text in pictures[0].axes[0].get_legend().get_texts()]
    assert legend == ["global model, global test set", "local models, own test splits"]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("lines", "words"), [(60, "fedavg, FedOpt, server_optimizer=adam, server_lr=0.01"), (12, "a")])
def test_a_legend_of_many_lines_stands_beside_the_chart(tmp_path, lines, words):
    compare({"iid": {"few": {1: [0.1], 2: [0.9]}}}, tmp_path / "few.png")
    groups = {f"{words}, {number}": {1: [0.1], 2: [number / lines]} for number in range(lines)}
    compare({"iid": groups}, tmp_path / "many.png")
    few, many = picture(tmp_path / "few.png"), picture(tmp_path / "many.png")
    assert many.shape[1] > few.shape[1] + 50
    assert (many[0] == 255).all()  # nothing is cut off
    assert (many[-1] == 255).all()
    assert (many[:, -1] == 255).all()
    # the lines begin together at the lower left, where nothing lies above them but the grid
    above = many[10 : len(many) // 2, 100:150].astype(int)
    assert np.ptp(above, axis=2).max() == 0  # no colour


def colours_of(path):
    """Every colour of a picture as hexadecimal text."""
    rows = np.unique(np.asarray(Image.open(path).convert("RGB")).reshape(-1, 3), axis=0)
    return {f"#{r:02x}{g:02x}{b:02x}" for r, g, b in rows.tolist()}


def test_classes_have_colours_of_their_own_in_two_and_three_dimensions(tmp_path):
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
        assert set(COLOURS[:3]) <= colours_of(tmp_path / name)
        assert not set(COLOURS[3:]) & colours_of(tmp_path / name)


def test_more_classes_than_colours_get_a_scale():
    assert colour(9, 10) == COLOURS[9]
    assert len({tuple(colour(c, 62)) for c in range(62)}) == 62


def test_labels_are_drawn_as_they_stand_and_powers_of_ten_as_such(tmp_path):
    line = {"round": 0, "accuracy": 0.1, "loss": 1.0, "loss_terms": {"$\\frac{$": 1.0}}
    curves([line], tmp_path / "a.png", title="$x^{$", own_models="$")
    heat_map(np.array([[5, 1]]), ["$\\frac{$", "b"], tmp_path / "b.png", title="t")
    compare({"$\\frac{$": {f"$_{n}": {1: [0.1]} for n in range(12)}}, tmp_path / "c.png")
    made, axes = figure(4, 4)
    axes.loglog([1, 10, 100], [1, 10, 100], label="$\\frac{$")
    axes.legend()
    save(made, tmp_path / "d.png")
    assert [tick.get_parse_math() for tick in axes.get_xticklabels()] == [True] * len(axes.get_xticklabels())
    assert {f.name for f in tmp_path.iterdir()} == {"a.png", "b.png", "c.png", "d.png"}


def test_a_picture_that_cannot_be_drawn_is_a_warning(tmp_path, capsys):
    with plots.forgiving(tmp_path / "a.png"):
        raise ValueError("\n$\\frac{$\x1b[2J")
    assert capsys.readouterr().err == f"warning: {tmp_path}/a.png cannot be drawn: ValueError: ?$\\frac{{$?[2J\n"
