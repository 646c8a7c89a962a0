"""The report's page: self-contained, with the report's numbers, and foreign text escaped."""

import base64
import re
from dataclasses import replace
from html.parser import HTMLParser

from run_folders import resolved

from fl_labelskew_plugins.studies import page, report
from fl_labelskew_plugins.studies.finished import Client, FinishedRun, grouped

NASTY = "\"><img src=x onerror=\"throw 'bad'\"><script>throw 'bad'</script>&amp;'`\\"
VOID = ("meta", "img", "br")


def run(method, seed, accuracies, partition="pcdd", optimizer="FedAvg", recall=(1.0, 0.5, None), seconds=1.0):
    line = {"bytes_up": 2e6, "bytes_down": 1e6, "recall": list(recall)}
    metrics = [{"round": r, "accuracy": a} | line for r, a in enumerate(accuracies)]
    timings = [{"round": r, "seconds": seconds, "peak_mb": 500} for r in range(len(accuracies))]
    return FinishedRun("x", resolved(seed, method, partition, optimizer), metrics, timings)


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
    """Collect elements that are closed without being open, and references."""

    def __init__(self, text):
        super().__init__()
        self.open, self.wrong, self.links, self.tags = [], [], [], set()
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        if tag not in VOID:
            self.open.append(tag)
        self.links += [value for key, value in attrs if key in ("src", "href", "action", "data", "poster")]

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)


def test_page_is_valid_and_self_contained_and_has_the_numbers():
    text = rendered(RUNS)
    found = Balance(text)
    (picture,) = found.links
    head, _, content = picture.partition(",")
    assert head == "data:image/svg+xml;base64"
    assert "<script" not in base64.b64decode(content).decode()
    assert (found.open, found.wrong) == ([], [])
    assert "script" not in found.tags
    assert "url(" not in text
    assert "@import" not in text
    assert "http" not in re.sub(r"http-equiv", "", text)
    assert ">70.00 ± 14.14<" in text  # the last test of 0.6 and 0.8
    assert ">2 (1.50x)<" in text  # FedLC has 70 % after 2 rounds, the baseline's mean after 3
    assert "<strong>90.00</strong>" in text


def test_classes_have_the_names_of_the_data():
    names = ["T-shirt/top", "<b>Bag</b>", "Ankle boot", "Coat"]
    one = replace(run("fedavg", 0, [0.5], recall=[1.0, 0.5, None, 0.0]), class_names=names)
    text = rendered([replace(one, class_names=()), replace(one, recipe=run("fedlc", 1, []).recipe)])
    heads = "".join(f'<th scope="col">{name}</th>' for name in ("T-shirt/top", "&lt;b&gt;Bag&lt;/b&gt;", "Ankle boot"))
    assert heads in text
    assert '<td class="text">fedlc</td><td>100</td><td>50</td><td>-</td><td>0</td>' in text
    assert '<th scope="col">3</th>' in rendered([replace(one, class_names=names[:3])])  # another data set's


def test_clients_have_names_samples_and_accuracies():
    metrics = [{"round": 0, "client_accuracy_mean": 0.75}]
    clients = [[Client("<b>north", 40.0, 12.0, north), Client("south", 50.0, None, None)] for north in (0.5, 0.75)]
    runs = [FinishedRun("x", resolved(seed), metrics, clients=known) for seed, known in enumerate(clients)]
    text = rendered(runs)
    assert "on clients&#39; own test splits, mean over the clients" in text
    assert '<th scope="col">test samples</th><th scope="col">seed 0</th><th scope="col">seed 1</th>' in text
    assert '<td class="text">&lt;b&gt;north</td><td>40</td><td>12</td><td>50.00</td><td>75.00</td>' in text
    assert '<td class="text">south</td><td>50</td><td>-</td><td>-</td><td>-</td>' in text
    assert "<h2>Clients" not in rendered(RUNS[:1])
    many = replace(runs[0], clients=[Client(str(k), 1.0, 1.0, k / 60) for k in range(60)])
    assert "10 more clients" in rendered([many])


def test_settings_are_shown_once_if_they_are_shared():
    text = rendered(RUNS[:5])
    assert '<td class="text">all</td><td class="text"></td><td class="text">data_args.dataset: digits</td>' in text
    assert "train_args.federated_optimizer: FedAvg, method_args.method: fedlc</td>" in text


def test_a_page_of_one_run_with_one_round():
    bare = FinishedRun("x", {"method_args": {"method": "fedavg"}}, [{"round": 0, "accuracy": 0.5}])
    found = Balance(rendered([bare]))
    assert (found.open, found.wrong) == ([], [])
    assert "Accuracy of each class" not in rendered([bare])
