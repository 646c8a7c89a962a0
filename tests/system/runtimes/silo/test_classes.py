"""Silos with folders of pictures of their own, one of which names the classes in another order."""

import numpy as np
import pytest
from federations import finished
from PIL import Image
from wire_table import Wire
from wiretap import messages, watched

from fl_labelskew_plugins.runtimes.transport import Kind

NAMES = ("angioma", "benign-keratosis", "carcinoma")
RECIPE = """\
common_args: {{training_type: cross_silo}}
data_args: {{dataset: image_folder, data_cache_dir: {folder}/server, image_size: 8, input_shape: [3, 8, 8]}}
model_args: {{model: logistic}}
train_args: {{client_num_in_total: 3, comm_round: 2, batch_size: 4, learning_rate: 0.1}}
method_args: {{method: fedavg}}
validation_args: {{server_test_data: {tests}}}
device_args: {{threads: 1, loader_workers: 0}}
comm_args: {{backend: GRPC, quorum_timeout_s: 60, reconnect_s: 5}}
"""


@pytest.fixture
def of_pictures(make_federation, tmp_path):
    """A federation of silos with pictures; ``orders`` are the class names of each silo's file."""
    rng = np.random.default_rng(0)
    for owner in ("server", "silo1", "silo2", "silo3"):
        for part in ("test",) if owner == "server" else ("train", "test"):
            for c, name in enumerate(NAMES):
                (tmp_path / owner / part / name).mkdir(parents=True)
                for i in range(4):
                    pixels = rng.integers(0, 40, (8, 8, 3)) + np.eye(3, dtype=int)[c] * 200
                    Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / owner / part / name / f"{i}.png")

    def make(orders, *, tests=True):
        text = RECIPE.format(folder=tmp_path, tests=str(tests).lower())
        federation = make_federation("federation", text)
        texts = {}
        for rank, order in enumerate(orders, 1):
            data = f"dataset: image_folder, data_cache_dir: {tmp_path}/silo{rank}, image_size: 8"
            chosen = "" if order is None else f", class_names: [{', '.join(order)}]"
            texts[f"silo{rank}"] = f"data_args: {{{data}{chosen}}}\n"
        federation.give_files(**texts)
        return federation

    return make


def last_line(process):
    assert process.wait() == 2, process.text
    assert "Traceback" not in process.text
    return process.text.strip().splitlines()[-1]


def test_a_silo_with_another_class_order_learns_the_difference_and_sends_no_name(of_pictures):
    federation = of_pictures([None, NAMES, NAMES[::-1]])
    server, proxy = watched(federation)
    odd = federation.silo(3)
    assert last_line(odd) == (
        "error: class 0 is 'carcinoma' here and 'angioma' at the server (and 1 more differ); use the same "
        "data_args.class_names, in the same order, everywhere"
    )
    assert "data: image_folder, 12 training samples of 3 classes (carcinoma, benign-keratosis, angioma)\n" in odd.text
    server.says("silo 3 turned away: its class names or their order differ from the server's")
    (federation.folder / "silo3.yaml").write_text(
        (federation.folder / "silo2.yaml").read_text().replace("silo2", "silo3")
    )
    finished(server, *federation.silos())
    sent = [message for stream in proxy.sent for message in messages(stream)]
    hellos = [meta for kind, _, meta, _ in sent if kind == Kind.HELLO]
    assert len(hellos) == 4
    assert {frozenset(meta) for meta in hellos} == {
        frozenset({"samples", "input_shape", "num_classes", "process", "round", "classes"})
    }
    assert len({meta["classes"] for meta in hellos}) == 2
    assert Kind.FAILED not in {kind for kind, *_ in sent}
    bytes_sent = b"".join(bytes(stream) for stream in proxy.sent)
    assert not any(name.encode() in bytes_sent for name in NAMES)
    # only a silo with other names gets the names
    got = [meta for stream in proxy.received for _, _, meta, _ in messages(stream, client=False)]
    assert [meta["class_names"] for meta in got if "class_names" in meta] == [list(NAMES)]
    network = {"classifier.weight": "F32 (3, 192)", "classifier.bias": "F32 (3,)"}
    Wire(proxy, {"C": 3, "A": 3}, network).check("class names", "other class names", "turned away", "one normalisation")


def test_without_test_data_the_recipe_must_name_the_classes(of_pictures):
    federation = of_pictures([None, NAMES, NAMES], tests=False)
    server = federation.server()
    assert server.wait() == 2
    why = "missing; with validation_args.server_test_data: false the server has no sample to read it from; set it to"
    assert f"data_args.class_names: {why} the names of all classes, in order" in server.text


def test_a_dry_run_of_all_compares_them_too(of_pictures, forker, tmp_path):
    federation = of_pictures([NAMES, NAMES, NAMES[::-1]])
    line = last_line(forker.start(["run", federation.recipe, "--dry-run"], tmp_path / "log"))
    assert line.startswith("error: silo 3: class 0 is 'carcinoma' here and 'angioma' in silo 1's data (and 1 more dif")
    one = forker.start(["run", federation.recipe, "--dry-run", "--role", "client", "--rank", "2"], tmp_path / "one")
    assert one.wait() == 0
    assert "12 training samples of 3 classes (angioma, benign-keratosis, carcinoma), 1 client of 12 samples" in one.text
