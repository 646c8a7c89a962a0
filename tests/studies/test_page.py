"""The report's page: what it says, and what Debian's Chromium makes of it."""

import base64
import io
import math
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image
from run_folders import resolved

from fl_labelskew_plugins import plots
from fl_labelskew_plugins.studies import page, report
from fl_labelskew_plugins.studies.finished import Client, Run, grouped

NASTY = "\"><img src=x onerror=\"throw 'bad'\"><script>throw 'bad'</script>&amp;'`\\"
VOID = ("meta", "line", "br")


def run(method, seed, accuracies, partition="pcdd", optimizer="FedAvg", recall=(1.0, 0.5, None), seconds=1.0):
    metrics = [
        {"round": r, "accuracy": a, "bytes_up": 2e6, "bytes_down": 1e6, "recall": list(recall)}
        for r, a in enumerate(accuracies)
    ]
    timings = [{"round": r, "seconds": seconds, "peak_mb": 500} for r in range(len(accuracies))]
    return Run("x", resolved(seed, method, partition, optimizer), metrics, timings)


def rendered(runs, last=1):
    return page.page(report.rows(grouped(runs), last), last=last, baseline="fedavg")


RUNS = [
    run("fedavg", 0, [0.2, 0.4, 0.6]),
    run("fedavg", 1, [0.4, 0.6, 0.8]),
    run("fedlc", 0, [0.5, 0.7, 0.9], seconds=2.0),
    run("fedavg", 0, [0.3, 0.3, 0.5], partition="dirichlet"),
    run("fedavg", 0, [0.3, 0.4, 0.45], optimizer="FedProx"),
    run(NASTY, 0, [0.1, 0.2, 0.3], partition=NASTY),
]


class Balance(HTMLParser):
    """Notes elements that close what is not open."""

    def __init__(self, text):
        super().__init__()
        self.open, self.wrong, self.links = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)
        self.links += [value for key, value in attrs if key in ("src", "href", "action", "data", "poster")]

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)


def test_the_page_is_balanced_and_refers_to_nothing():
    text = rendered(RUNS)
    found = Balance(text)
    assert (found.open, found.wrong, found.links) == ([], [], [])
    assert text.count("<script>") == 1
    assert "url(" not in text
    assert "@import" not in text
    assert "http" not in re.sub(r"http-equiv", "", text)


def test_numbers_are_those_of_the_rows():
    text = rendered(RUNS)
    assert ">70.00 ± 14.14<" in text  # the last test of 0.6 and 0.8
    assert ">2 (1.50x)<" in text  # FedLC has 70 % after 2 rounds, the baseline's mean after 3
    assert "[[1, 30.0, 14.142], [2, 50.0, 14.142], [3, 70.0, 14.142]]".replace('"', "&#34;") in text
    cells = re.findall(r'title="1: ([0-9.]+)">(\d+)<', text)
    assert ("50.00", "50") in cells


def test_lines_have_the_colours_of_their_methods_as_in_pictures():
    text = rendered(RUNS)
    for label, method in {"fedavg": "fedavg", "fedlc": "fedlc", "fedavg, FedProx": "FedProx"}.items():
        assert f'stroke="{plots.COLOURS[plots.PLACES.index(method)]}"/></svg>{label}</button>' in text


def test_classes_have_the_names_of_the_data():
    names = ["T-shirt/top", "<b>Bag</b>", "Ankle boot", "Coat"]
    one = replace(run("fedavg", 0, [0.5], recall=[1.0, 0.5, None, 0.0]), class_names=names)
    text = rendered([replace(one, class_names=()), replace(one, recipe=run("fedlc", 1, []).recipe)])
    assert [n for n in re.findall(r'<th scope="col" title="([^"]*)">', text) if n != "pcdd"] == [
        "T-shirt/top", "&lt;b&gt;Bag&lt;/b&gt;", "Ankle boot", "Coat",
    ]  # fmt: skip
    assert 'title="T-shirt/top: 100.00">100<' in text
    assert 'class="heat upright"' in text
    assert 'title="3: 0.00">0<' in rendered([replace(one, class_names=names[:3])])  # another data set's


def test_clients_have_names_samples_and_accuracies():
    metrics = [{"round": 0, "client_accuracy_mean": 0.75}]
    runs = [
        Run(
            "x",
            resolved(seed),
            metrics,
            clients=[Client("<b>north", 40.0, 12.0, north), Client("south", 50.0, None, None)],
        )
        for seed, north in enumerate([0.5, 0.75])
    ]
    text = rendered(runs)
    assert "on clients&#39; own test splits, mean over the clients" in text
    assert "<h2>Confusion" not in text
    head = '<th scope="col">test samples</th><th scope="col">seed 0</th><th scope="col">seed 1</th>'
    assert head in text
    assert '<th scope="row">&lt;b&gt;north</th><td>40</td><td>12</td><td>50.00</td><td>75.00</td>' in text
    assert '<th scope="row">south</th><td>50</td><td>-</td><td>-</td><td>-</td>' in text
    assert '<th scope="col">accuracy</th>' in rendered(runs[:1])
    assert "<h2>Clients" not in rendered(RUNS[:1])


def test_close_values_have_close_shades():
    lines = page._heat_map(["a", "b"], [("x", [99.33, 100.0])], ".2f")["lines"]
    ((_, (low, high)),) = lines
    assert low["ink"] == high["ink"] == "#fff"
    assert page._shade(0)[1] == "#111"


def test_settings_are_told_once_where_they_are_shared():
    text = rendered(RUNS[:5])
    assert "<dt>Everywhere</dt><dd>data_args: dataset: digits</dd>" in text
    assert "<dt>dirichlet</dt><dd>partition_args: partition_method: dirichlet</dd>" in text
    own = "<td>pcdd</td><td>train_args: federated_optimizer: FedAvg<br>method_args: method: fedlc</td><td>x</td>"
    assert f'<tr><th scope="row">fedlc</th>{own}</tr>' in text


def test_one_run_of_one_round_without_anything_else_is_a_page():
    bare = Run("x", {"method_args": {"method": "fedavg"}}, [{"round": 0, "accuracy": 0.5}])
    found = Balance(rendered([bare]))
    assert (found.open, found.wrong) == ([], [])
    assert "Accuracy of each class" not in rendered([bare])
    assert "What a round costs" not in rendered([bare])


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(20, 90, (20, 100, 20)), (63, 64.5, (63, 65, 1)), (50, 50, (50, 51, 1)), (0, 0, (0, 1, 1))],
)
def test_axes_have_round_ends(low, high, ticks):
    assert page._ticks(low, high) == ticks


def test_axes_name_few_rounds():
    assert page._rounds(1, 3) == [1, 2, 3]
    assert page._rounds(1, 100) == [10, 20, 30, 40, 50, 60, 70, 80, 90, 100]
    assert page._rounds(1, 16) == [2, 4, 6, 8, 10, 12, 14, 16]
    assert page._rounds(1, 1) == [1]


def test_what_is_no_number_sorts_last_and_infinity_highest():
    assert [page._key(value) for value in (0.5, math.nan, math.inf, "3-20")] == ["0.5", "", "1e+300", ""]


# In a browser


@pytest.fixture(scope="module")
def opened(browser, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(rendered(RUNS), encoding="utf-8")
    browser.open(path)
    return browser, path


def test_the_browser_has_nothing_to_complain_and_nothing_to_fetch(opened):
    browser, path = opened
    assert browser.complaints() == []
    assert browser.requests() == [path.as_uri()]
    assert browser.evaluate("document.querySelectorAll('img, iframe, link').length") == 0
    assert browser.evaluate("document.scripts.length") == 1
    assert NASTY in browser.evaluate("document.querySelector('table.summary').textContent")


def test_the_browser_would_see_both(opened):
    browser, path = opened
    other = path.with_name("bad.html")
    other.write_text(path.read_text().replace("</main>", "<img src='x.png'><script>1</script></main>"))
    browser.open(other)
    assert len(browser.complaints()) >= 2  # the policy forbids both
    browser.open(path)


@pytest.fixture
def shown(browser, tmp_path):
    """The browser with the page of these runs open."""

    def show(runs):
        path = tmp_path / "page.html"
        path.write_text(rendered(runs))
        browser.open(path)
        return browser

    return show


TIP = "document.querySelector('.chart .tip').innerText"
PRESS = "document.querySelector('.chart svg').dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowRight'}))"


def column(browser, number):
    script = f"[...document.querySelectorAll('.summary tbody tr')].map(row => row.cells[{number}].innerText)"
    return browser.evaluate(script)


def test_a_head_sorts(opened):
    browser, _ = opened
    heads = browser.evaluate("[...document.querySelectorAll('.summary thead th')].map(head => head.innerText)")
    rank, accuracy = heads.index("rounds to baseline"), heads.index("accuracy")
    click = "document.querySelectorAll('.summary thead button')[{}].click()"
    browser.evaluate(click.format(accuracy))
    up = ["30.00", "45.00", "50.00", "70.00 ± 14.14", "90.00"]
    assert column(browser, accuracy) == up
    browser.evaluate(click.format(accuracy))
    assert column(browser, accuracy) == up[::-1]
    sorted_by = "document.querySelector('.summary th[aria-sort]').innerText"
    assert browser.evaluate(sorted_by) == "accuracy"
    browser.evaluate(click.format(rank))
    assert column(browser, rank) == ["2 (1.50x)", "3 (1.00x)", "3 (1.00x)", "> 3", "-"]
    browser.evaluate(click.format(rank))
    assert column(browser, rank)[:3] == ["3 (1.00x)", "3 (1.00x)", "2 (1.50x)"]  # what is missing stays last
    browser.evaluate(click.format(0))
    assert column(browser, 0)[1:4] == ["fedavg", "fedavg", "fedavg, FedProx"]


def test_names_take_lines_out_and_arrow_keys_read_values(opened):
    browser, _ = opened
    browser.evaluate(PRESS)
    browser.evaluate(PRESS)
    assert browser.evaluate(TIP).splitlines() == [
        "round 2", "70.00 fedlc", "50.00 ± 14.14 fedavg", "40.00 fedavg, FedProx",
    ]  # fmt: skip
    browser.evaluate("document.querySelector('.legend button').click()")
    browser.evaluate(PRESS)
    assert browser.evaluate(TIP).splitlines() == ["round 3", "90.00 fedlc", "45.00 fedavg, FedProx"]
    gone = "[...document.querySelectorAll('.series')].map(line => getComputedStyle(line).display === 'none')"
    assert browser.evaluate(gone) == [True, False, False, True, False]
    browser.evaluate("document.querySelector('.legend button').click()")
    assert browser.evaluate(gone) == [False] * 5


def test_many_lines_go_out_at_once(shown):
    looks = plots.looks({name: name for name in (f"method{number}" for number in range(12))})
    browser = shown([run(name, 0, [0.5, 0.6]) for name in looks])
    seen = "[...document.querySelectorAll('.series')].filter(line => getComputedStyle(line).display !== 'none').length"
    dashed = "document.querySelectorAll('.series path[stroke-dasharray]').length"
    assert (browser.evaluate(seen), browser.evaluate(dashed)) == (12, sum(look.dash > 0 for look in looks.values()))
    browser.evaluate("document.querySelector('[data-all=false]').click()")
    browser.evaluate("document.querySelector('[data-series=\"3\"]').click()")
    assert browser.evaluate(seen) == 1
    browser.evaluate("document.querySelector('[data-all=true]').click()")
    assert browser.evaluate(seen) == 12
    assert browser.complaints() == []


def test_of_many_lines_only_the_one_pointed_at_has_its_band(shown):
    browser = shown([run(f"m{n}", seed, [0.5 + seed / 10, 0.6]) for n in range(12) for seed in (0, 1)])
    seen = (
        "[...document.querySelectorAll('.series polygon')].filter(b => getComputedStyle(b).display !== 'none').length"
    )
    assert browser.evaluate(seen) == 0
    browser.evaluate("document.querySelector('[data-series=\"3\"]').focus()")
    assert browser.evaluate(seen) == 1
    shown([run("m", seed, [0.5 + seed / 10, 0.6]) for seed in (0, 1)])
    assert browser.evaluate(seen) == 1


LONG = "server_optimizer=adam,_server_lr=0.01,_server_momentum=0.0,_and_so_on"


def test_long_names_leave_room_for_what_they_name(shown):
    browser = shown([run(f"{LONG}_{number}", 0, [0.1 + number / 20, 0.5]) for number in range(12)])
    for width in (1280, 380):
        browser.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        shares = """[...document.querySelectorAll('table.heat')].map(table =>
            table.querySelector('tbody th').offsetWidth / table.parentElement.clientWidth)"""
        assert max(browser.evaluate(shares)) < 0.55
        first = """(() => {
            const wide = document.querySelector('table.summary').parentElement;
            wide.scrollLeft = 1e5;
            const box = wide.querySelector('tbody td').getBoundingClientRect();
            return [wide.scrollLeft, box.left - wide.getBoundingClientRect().left, box.width / wide.clientWidth];
        })()"""
        scrolled, left, share = browser.evaluate(first)
        assert (left, share < 0.55) == (0, True)
    assert scrolled > 0  # else nothing was tried
    browser.ask("Emulation.clearDeviceMetricsOverride")


def test_of_many_lines_a_chart_reads_off_the_nearest(shown):
    browser = shown([run(f"m{number}", 0, [0.1 + number / 20, 0.5]) for number in range(12)])
    tip = TIP + ".split('\\n').map(line => line.split(' ').pop())"
    browser.evaluate(PRESS)
    assert browser.evaluate(tip) == ["1", *(f"m{number}" for number in range(11, 3, -1)), "more"]
    # the pointer on the lowest line's first point
    browser.evaluate("""(() => {
        const svg = document.querySelector('.chart svg');
        const at = svg.querySelector('[data-name="m0"] path').getPointAtLength(0).matrixTransform(svg.getScreenCTM());
        svg.dispatchEvent(new PointerEvent('pointermove', {clientX: at.x, clientY: at.y}));
    })()""")
    assert browser.evaluate(tip) == ["1", *(f"m{number}" for number in range(7, -1, -1)), "more"]
    assert browser.evaluate(TIP).splitlines()[-1] == "... and 4 more"
    assert browser.complaints() == []


def picture(browser, width, **media):
    browser.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
    browser.ask("Emulation.setEmulatedMedia", **media)
    shot = browser.ask("Page.captureScreenshot", captureBeyondViewport=True)["data"]
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(shot))).convert("L")).astype(float)


def test_it_is_light_dark_narrow_and_printable(opened):
    browser, path = opened
    browser.open(path)
    light = picture(browser, 1280, features=[{"name": "prefers-color-scheme", "value": "light"}])
    dark = picture(browser, 1280, features=[{"name": "prefers-color-scheme", "value": "dark"}])
    assert light.mean() > 200
    assert dark.mean() < 80
    for shot in (light, dark):
        assert shot.shape[1] > 1200
        assert shot.std() > 15  # something is drawn
    picture(browser, 380, features=[])
    assert browser.evaluate("document.documentElement.scrollWidth") <= 380  # what is wide scrolls by itself
    paper = picture(browser, 800, media="print", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    assert paper.mean() > 200
    pdf = base64.b64decode(browser.ask("Page.printToPDF")["data"])
    assert pdf.startswith(b"%PDF")
