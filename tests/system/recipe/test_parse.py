import re
import time

import pytest
from error_messages import message, mistakes
from fl_labelskew_registry import LabelSkewError, Method, PluginError, catalog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field
from recipe_texts import CROSS_SILO, GOOD, OWN_FILE, cross_silo, lines_of, only_line, text_with

from fl_labelskew_plugins.recipe import parse
from fl_labelskew_plugins.recipe import yaml as plain_yaml
from fl_labelskew_plugins.recipe.mistakes import RecipeError
from fl_labelskew_plugins.recipe.model import PARTS


@pytest.mark.parametrize("number", ["1e-5", "1E-5", "1.0e-5", "+1e-5", ".1e-4", "0.00001"])
def test_every_way_to_write_a_float(number):
    assert parse.parse(text_with(), overrides=[f"train_args.weight_decay={number}"]).train.weight_decay == 1e-5


def test_the_last_override_applies():
    overrides = ["train_args.epochs=3", "train_args.epochs=4", "method_args.mu2=0", "device_args.gpu_ids=[1, 2]"]
    overrides += ["data_args.data_cache_dir=a=b", "train_args.gradient_clip_norm="]
    loaded = parse.parse(text_with(), overrides=overrides)
    assert loaded.train.epochs == 4
    assert loaded.method.params.mu2 == 0
    assert loaded.device.gpu_ids == [1, 2]
    assert loaded.data.data_cache_dir == "a=b"
    assert loaded.train.gradient_clip_norm is None


def test_files_that_cannot_be_read(tmp_path):
    junk = tmp_path / "junk.yaml"
    junk.write_bytes(b"\xef\xbb\xbf" + text_with().encode())  # a byte order mark is none of these
    assert parse.load(junk).method_name == "fedmr"
    cases = {tmp_path / "nope.yaml": "cannot be read: No such file", tmp_path: "cannot be read: Is a directory"}
    for path, words in cases.items():
        assert message(lambda path=path: parse.load(path)).startswith(f"{path}: {words}")
    for content, words in {
        b"a: \xff\xfe": "not text: byte 4 is not UTF-8",
        b"a: \0": "not YAML: unacceptable character #x0000",
        b"": "empty; a recipe has the sections common_args, ",
        b"# nothing\n": "empty; ",
        b"#" * (1 << 20) + b"\n": "larger than 1 MiB",
    }.items():
        junk.write_bytes(content)
        assert message(lambda: parse.load(junk)).startswith(f"{junk}: {words}")


BOMB = "a: &a [1,1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{y}: &{y} [*{x},*{x},*{x},*{x},*{x},*{x},*{x},*{x},*{x},*{x}]\n"
    for x, y in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "line 1, column 5: expected the node content"),
        ("--- {}\n--- {}", "line 2, column 1: expected a single document in the stream, but found another document"),
        ("just words", "'just words' is not a mapping of sections to keys"),
        ("a: &a [*a]", "line 1: an alias that contains itself"),
        (BOMB, "line 5: unfolds to more than 100,000 values"),
        ("[" * 5000, "nested too deeply"),
        ("a: !!python/object/apply:os.system [x]", "line 1: tag tag:yaml.org,2002:python/object/apply:os.system"),
        ("a:\n  b: 0x" + "f" * 900_000, "line 2: b: a number of 900002 characters; use"),
        ("a: " + "1" * 900_000 + "e5", "line 1: a: a number of 900002 characters; use"),
        ('a:\n- [1, !!int "' + "59:" * 100 + '59"]', "line 2: a: a number of 302 characters; use at most 100, or"),
        ("a: !!int x", "line 1: x is not a valid int"),
        ("? [a]\n: 1", "line 1: a key that is not a single value"),
        ('a: "\\ud800"', "line 1: half of a surrogate pair"),
        ("a: *b", "line 1, column 4: found undefined alias 'b'"),
    ],
)
def test_files_without_a_recipe(text, message):
    assert only_line(text).startswith(f"r.yaml: {message}")


def test_repeated_keys_at_any_depth():
    text = text_with() + "common_args: {random_seed: 1, random_seed: 2}\ndata_args: {dataset: digits}\n"
    lines = lines_of(text)
    assert [re.sub(r"\d+", "N", line) for line in lines] == [
        "r.yaml: line N: key 'random_seed' occurs twice; first on line N",
        "r.yaml: line N: key 'data_args' occurs twice; first on line N",
    ]


@pytest.mark.parametrize("value", [None, "x", [1]])
@pytest.mark.parametrize("section", ["train_args", "method_args"])
def test_a_section_that_is_not_a_mapping(section, value):
    line = only_line(text_with(**{section: value}))
    assert line.startswith(f"r.yaml: {section}: ")
    assert "is not a mapping of keys to values" in line


def test_an_unknown_section_names_the_nearest():
    line = only_line(text_with(trian_args={"epochs": 1}))
    assert line == f"r.yaml: trian_args: unknown section; allowed: {', '.join(PARTS)}; did you mean train_args?"
    misspelt = {section.replace("data_args", "data_arg"): keys for section, keys in GOOD.items()}
    assert only_line(plain_yaml.write(misspelt)).endswith("did you mean data_args?")  # and it is not missing as well


def test_missing_names_list_the_available_names():
    lines = lines_of("common_args: {}")
    assert [line.partition(";")[0] for line in lines] == [
        "r.yaml: data_args.dataset: missing",
        "r.yaml: model_args.model: missing",
        "r.yaml: method_args.method: missing",
    ]
    assert lines[0].endswith("allowed: " + ", ".join(entry.name for entry in catalog.entries("datasets")))


def test_a_misspelt_plugin_key_is_one_mistake():
    line = only_line(text_with().replace("method: fedmr", "metod: fedmr"))
    assert line.startswith("r.yaml: method_args.method: missing; allowed: ccvr, fd, fedavg, ")
    assert line.endswith("; found instead: metod")


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("train_args.learning_rat", 1, "unknown key; allowed: federated_optimizer, "),
        ("train_args.epochs", 0, "0 is out of range; allowed: an integer of at least 1"),
        ("train_args.epochs", 1.0, "1.0 is of the wrong type; allowed: an integer of at least 1"),
        ("train_args.epochs", True, "true is of the wrong type; allowed: an integer of at least 1"),
        ("train_args.learning_rate", float("nan"), ".nan is out of range; allowed: a number above 0"),
        ("train_args.momentum", 1, "1 is out of range; allowed: a number of at least 0 and below 1"),
        ("data_args.download", "yes", "'yes' is of the wrong type; allowed: true or false"),
        ("train_args.client_optimizer", "sdg", "'sdg' is unknown; allowed: sgd, adam; did you mean sgd?"),
        ("train_args.gradient_clip_norm", 0, "0 is out of range; allowed: a number above 0, or null"),
        ("train_args.client_num_per_round", 11, "11 is out of range; allowed: an integer from 1 to client_num_in_t"),
        ("common_args.random_seed", 2**31, f"{2**31} is out of range; allowed: an integer of at least 0 and below 2*"),
        ("common_args.random_seed", 10**60, f"{10**60}"[:57] + "... is out of range"),
        ("device_args.gpu_ids", [], "[] has the wrong length; allowed: a list of at least 1 item, each an integer of"),
        ("device_args.gpu_ids", [0, -1, "x"], "item 2: -1 is out of range; allowed: a list of at least 1 item, each"),
        ("data_args.dataset", 3, "3 is of the wrong type; allowed: text"),
        ("method_args.method", "FedMR", "'FedMR' is unknown; allowed: ccvr, fd, fedavg, "),
        ("method_args.mu3", 1, "unknown key; allowed: method, mu1, mu2, scale, "),
    ],
)
def test_one_mistake_is_one_line(place, value, message):
    section, key = place.split(".")
    assert only_line(text_with(**{section: {key: value}})).startswith(f"r.yaml: {place}: {message}")
    # The same value on the command line says where it came from.
    written = plain_yaml.write([value]).strip()
    written = written[1:-1] if written.startswith("[") else written.removeprefix("- ")
    assert only_line(text_with(), f"{place}={written}").startswith(f"--set {place}: {message}")


def test_all_mistakes_of_a_file_are_reported_together():
    lines = lines_of(
        text_with(
            common_args={"random_seed": -1},
            train_args={"epochs": 0, "learning_rat": 1},
            method_args={"mu1": -1, "mu3": 1},
            data_args={"download": 3, "typo": 1},
            model_args={"model": "mlpp"},
            oops=None,
        ),
        "nonsense",
        "train_args.batch_size=-3",
    )
    places = [line.partition(": ")[0] if line.startswith("--set") else line.split(": ")[1] for line in lines]
    assert sorted(places) == sorted([
        "oops", "--set nonsense", "common_args.random_seed", "train_args.epochs", "train_args.learning_rat",
        "--set train_args.batch_size", "method_args.mu1", "method_args.mu3",
        "data_args.download", "data_args.typo", "model_args.model",
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train_args.epochs", "--set train_args.epochs: malformed"),
        ("=3", "--set =3: malformed"),
        ("train_arg.epochs=3", "--set train_arg.epochs: unknown section; allowed: common_args, "),
        ("train_args.epoch=3", "--set train_args.epoch: unknown key; allowed: federated_optimizer, "),
        ("train_args.epochs.x=3", "--set train_args.epochs.x: unknown key; "),
        ("train_args.epochs=[", "--set train_args.epochs: '[' is not a YAML value: line 1, column 2"),
        ("device_args.gpu_ids={a: 1, a: 2}", "--set device_args.gpu_ids: line 1: key 'a' occurs twice"),
        ("a\nb=3", "--set a?b=3: malformed"),
    ],
)
def test_wrong_overrides(override, message):
    assert lines_of(text_with(), override)[0].startswith(message)


def test_a_value_that_is_nested_too_deeply_is_one_mistake():
    assert only_line(text_with(), f"comm_args.workers={'[' * 250}{']' * 250}").startswith("r.yaml: comm_args: ")


class Broken(Method):
    class Params(BaseModel):  # lenient, unlike ours: it ignores keys that it does not know
        number: int = Field(1, ge=0)
        pair: tuple[int, int] = (1, 2)

        def model_post_init(self, context):
            if self.number == 13:
                raise RuntimeError("an unlucky\nnumber")

    def __init__(self, params=None):
        super().__init__(params)
        if params.number == 14:
            raise OSError("no disk")


@pytest.fixture
def foreign(monkeypatch):
    real = catalog.load
    monkeypatch.setattr(catalog, "load", lambda kind, name: Broken if name == "fedavg" else real(kind, name))


def foreign_text(**keys):
    return plain_yaml.write(GOOD | {"method_args": {"method": "fedavg", **keys}})


@pytest.mark.usefixtures("foreign")
def test_parameters_of_a_lenient_model_are_checked():
    assert parse.parse(foreign_text(pair=[3, 4])).method.params.pair == (3, 4)
    assert "unknown key; allowed: method, number, pair; did you mean number?" in only_line(foreign_text(numbr=1))
    line = only_line(foreign_text(pair=[3]))
    assert "method_args.pair: item 2: missing; allowed: a list of 2 items: an integer; an integer" in line


@pytest.mark.usefixtures("foreign")
@pytest.mark.parametrize(("number", "message"), [(13, "RuntimeError: an unlucky number"), (14, "OSError: no disk")])
def test_a_plugin_that_fails_is_one_line(number, message):
    assert message in only_line(foreign_text(number=number))


def test_a_plugin_that_fails_to_import_hides_no_other_mistake(monkeypatch):
    def load(kind, name):
        raise PluginError("method 'fedmr' of distribution x (y:Z) does not import: ImportError: no\nsuch module")

    monkeypatch.setattr(catalog, "load", load)
    lines = lines_of(text_with(train_args={"epochs": 0}))
    assert sum("does not import: ImportError: no such module" in line for line in lines) == 5
    assert sum("train_args.epochs" in line for line in lines) == 1


def silo_with(tmp_path, text, rank=1, base=None):
    """Silo 1's recipe where its file is ``text``; the other silo's file is on another machine."""
    (tmp_path / "one.yaml").write_text(text, encoding="utf-8")
    return parse.silo(parse.parse(base or cross_silo(), source=tmp_path / "r.yaml"), rank)


def silo_lines(tmp_path, text):
    lines, where = mistakes(lambda: silo_with(tmp_path, text)), f"{tmp_path / 'one.yaml'}: "
    assert all(line.startswith(where) and "\n" not in line for line in lines)
    return [line.removeprefix(where) for line in lines]


def test_paths_are_relative_to_the_file_that_names_them(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    source = tmp_path / "recipes" / "r.yaml"
    loaded = parse.parse(cross_silo(certs="../c"), source=source)
    assert loaded.comm.certs == str(tmp_path / "c")
    assert loaded.client_specific.data_silo_config == [
        f"{source.parent}/{name}" for name in ("one.yaml", "sub/two.yaml")
    ]
    assert parse.parse(loaded.dump(), source="run/recipe.yaml").resolved() == loaded.resolved()
    on_command_line = parse.parse(cross_silo(), source=source, overrides=["comm_args.certs=c"])
    assert on_command_line.comm.certs == str(tmp_path / "here" / "c")


def test_a_silo_without_a_file_runs_the_recipe():
    loaded = parse.parse(text_with(**CROSS_SILO | {"client_specific_args": {}}))
    assert parse.silo(loaded, 2) is loaded
    assert not loaded.own_data
    for rank in (0, 3):
        assert f"--rank {rank}: out of range; allowed: 1 to 2" in message(lambda rank=rank: parse.silo(loaded, rank))


def test_a_silos_file_affects_only_this_silo(tmp_path):
    own = silo_with(
        tmp_path,
        "data_args: {dataset: npz, file: mine.npz}\ndevice_args: {threads: 1}\n"
        "comm_args: {certs: mine, send_contributions: false}\ntracking_args: {run_dir: here}\n",
        base=text_with(**CROSS_SILO | {"data_args": {"mean": [0.5], "std": [0.25]}}),
    )
    assert (own.data.mean, own.data.std) == ([0.5], [0.25])  # one normalisation for all
    assert own.own_data
    assert (own.data.dataset, own.dataset.params.file) == ("npz", "mine.npz")
    assert (own.device.threads, own.tracking.run_dir, own.tracking.checkpoint_every) == (1, "here", 10)
    assert (own.comm.certs, own.comm.send_contributions) == (str(tmp_path / "mine"), False)
    assert (own.comm.backend, own.method.params.mu1, own.train.epochs) == ("GRPC", 0.1, 2)
    kept = silo_with(tmp_path, "comm_args: {certs: mine}\n", base=cross_silo(send_measures=True))
    assert (kept.data.dataset, kept.comm.send_measures) == ("digits", True)
    with pytest.raises(RecipeError, match=r"two.yaml: cannot be read: No such file"):
        silo_with(tmp_path, "data_args: {dataset: digits}\n", rank=2)


def test_silos_with_tables_set_their_columns(tmp_path):
    table = "dataset: table, data_cache_dir: a.csv"
    whole = {"dataset": "table", "features": ["a", "b"], "categorical": {"b": ["x", "y"]}}
    base = text_with(**CROSS_SILO | {"data_args": whole})
    same = "features: [a, b], categorical: {b: [x, y]}"
    assert silo_with(tmp_path, f"data_args: {{{table}, {same}}}\n", base=base).data.dataset == "table"
    for said, words in (
        ("categorical: {b: [x, y]}", "data_args.features: missing; other silos may order columns differently: set"),
        (same.replace("a, b", "b, a"), "data_args.features: differ from the recipe's, or in their order; use"),
        ("features: [a, b], categorical: one_hot", "data_args.categorical: one_hot uses a silo's own categories, whi"),
    ):
        text = f"data_args: {{{table}, {said}}}\n"
        assert words in message(lambda text=text: silo_with(tmp_path, text, base=base))


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        ("", ["empty; a silo's file has the sections data_args, "]),
        ("[1]", ["[1] is not a mapping of sections to keys"]),
        ("train_args: {epochs: 3}", ["train_args: unknown section; allowed: data_args, method_args, "]),
        ("comm_args: {backend: sp}", ["comm_args.backend: unknown key; allowed: certs, send_measures, send_contrib"]),
        ("method_args: {mu1: 1}", ["method_args.mu1: unknown key; allowed: none"]),
        ("tracking_args: {trackers: [csv]}", ["tracking_args.trackers: unknown key; allowed: run_dir, "]),
        ("data_args: {download: true}", ["data_args.dataset: missing; allowed: cifar10, "]),
        ("data_args: {dataset: digit}", ["data_args.dataset: 'digit' is unknown; allowed: cifar10, "]),
        (
            "device_args: {threads: 0}\ncomm_args: {x: 2}",
            ["device_args.threads: 0 is out of range", "comm_args.x: unknown key; allowed: certs"],
        ),
    ],
)
def test_a_silos_file_is_checked_like_a_recipe(tmp_path, text, messages):
    lines = silo_lines(tmp_path, text)
    assert len(lines) == len(messages)
    assert all(line.startswith(message) for line, message in zip(lines, messages, strict=True))


def test_a_silo_sets_parameters_that_its_method_allows(tmp_path, monkeypatch):
    monkeypatch.setattr(type(parse.parse(text_with()).method), "silo_choices", ("mu2",))
    own = silo_with(tmp_path, "method_args: {mu2: 0.5}")
    assert (own.method.params.mu1, own.method.params.mu2) == (0.1, 0.5)
    (line,) = silo_lines(tmp_path, "method_args: {mu2: -1}")
    assert line == "method_args.mu2: -1 is out of range; allowed: a number of at least 0"
    assert silo_lines(tmp_path, "method_args: {mu1: 1}")[0].startswith("method_args.mu1: unknown key; allowed: mu2")


def check_lines(own):
    """What is wrong with a silo's file, without the ways to correct it."""
    return [line.removeprefix(f"{own}: ").split(";")[0] for line in mistakes(lambda: parse.check(own))]


def test_a_silos_own_file_is_checked_with_the_recipe_that_names_it(tmp_path):
    (tmp_path / "federation.yaml").write_text(cross_silo())
    (tmp_path / "other.yaml").write_text("client_specific_args: {data_silo_config: [3, null]}")
    (tmp_path / "broken.yml").write_text("a: [")
    own = tmp_path / "one.yaml"
    own.write_text("data_args: {dataset: digits}\ncomm_args: {send_measures: true}")
    assert parse.check(own) == "ok, silo 1 of federation.yaml"
    assert parse.check(tmp_path / "federation.yaml") == "ok"
    own.write_text("method_args: {mu1: 1}\ncomm_args: {certz: x}\ndata_args: {dataset: digit}")
    assert check_lines(own) == [
        "method_args.mu1: unknown key",
        "comm_args.certz: unknown key",
        "data_args.dataset: 'digit' is unknown",
    ]
    own.write_text("comm_args: {send_measures: true}")
    assert "--set train_args.epochs: 0 is out of" in message(lambda: parse.check(own, ["train_args.epochs=0"]))


def test_a_silos_file_without_a_recipe(tmp_path):
    own = tmp_path / "mine.yaml"
    own.write_text(plain_yaml.write(OWN_FILE))
    assert parse.check(own) == (
        "ok, as a silo's own file; method_args were not checked, because no recipe in this folder names the file"
    )
    own.write_text(plain_yaml.write(OWN_FILE | {"device_args": {"threads": 0}, "comm_args": {"backend": "GRPC"}}))
    assert check_lines(own) == ["comm_args.backend: unknown key", "device_args.threads: 0 is out of range"]
    own.write_text(text_with(model_args=None))
    assert check_lines(own) == ["model_args: null is not a mapping of keys to values"]
    own.write_text("")
    assert check_lines(own) == ["empty"]


FUZZ = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def parses_or_refuses(text, *overrides):
    mistakes_found = ["none"]
    try:
        parse.parse(text, source="r.yaml", overrides=overrides).dump()
    except RecipeError as error:
        mistakes_found = error.mistakes
    assert mistakes_found
    assert all("\n" not in line for line in mistakes_found)


@FUZZ
@given(st.binary(max_size=200))
def test_any_bytes(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("fuzz") / "r.yaml"
    path.write_bytes(content)
    with pytest.raises(LabelSkewError):
        parse.load(path)


@FUZZ
@given(st.sampled_from(sorted(k for keys in parse.parse(text_with()).resolved().values() for k in keys)), values)
def test_any_value_of_a_known_key(key, value):
    content = parse.parse(text_with()).resolved()
    for keys in content.values():
        if key in keys:
            keys[key] = value
    parses_or_refuses(plain_yaml.write(content))


@FUZZ
@given(st.text(max_size=40), values)
def test_any_override(override, value):
    parses_or_refuses(text_with(), override, f"train_args.epochs={value}", f"{override}.x=1")


def test_a_plugin_chosen_by_set_starts_from_its_defaults():
    text = text_with(partition_args={"partition_method": "pcdd", "classes_per_client": 2})
    dirichlet = ["partition_args.partition_method=dirichlet", "partition_args.beta=0.1"]
    for overrides in (dirichlet, dirichlet[::-1]):
        assert parse.parse(text, overrides=overrides).partitioner.params.beta == 0.1
    same = parse.parse(text, overrides=["partition_args.partition_method=pcdd"])
    assert same.partitioner.params.classes_per_client == 2
    wrong = lines_of(text, dirichlet[0], "partition_args.classes_per_client=3")
    assert any("--set partition_args.classes_per_client: unknown key" in line for line in wrong)


NO_NUMBER = "allowed: a list, each a number of at least"


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"mean": "imagenet"}, None),
        ({"mean": "data", "std": "data"}, None),
        ({"mean": [0.5, 1], "std": [0.1, 2]}, None),
        ({"mean": [0.5]}, "std: null does not match mean [0.5]; use a list of the same length"),
        ({"std": [0.5]}, "std: [0.5] does not match mean null; use lists for both, or only mean"),
        ({"mean": "data", "std": "imagenet"}, "std: 'imagenet' does not match mean 'data'; use lists for both, or"),
        ({"mean": [0.1], "std": [0]}, f"std: 0 is out of range; {NO_NUMBER} 1e-30 and at most 1e+30"),
        ({"mean": "imagnet"}, f"mean: 'imagnet' is of the wrong type; {NO_NUMBER} -1e+30"),
        ({"mean": []}, f"mean: [] has the wrong length; {NO_NUMBER} -1e+30"),
    ],
)  # fmt: skip
def test_mean_and_std_require_each_other(values, line):
    overrides = [f"data_args.{key}={value}" for key, value in values.items()]
    if line is None:
        made = parse.parse(text_with(), overrides=overrides)
        assert parse.parse(made.dump()).data == made.data
    else:
        assert f"data_args.{line}" in only_line(text_with(), *overrides)


@pytest.mark.parametrize("text", ["59:" * 300_000 + "59", "9" * 1_000_000 + "x", "+" * 1_000_000])
def test_text_similar_to_a_number_is_parsed_quickly(text):
    begun = time.process_time()
    assert plain_yaml.read(f"a: {text}") == ({"a": text}, [])
    assert time.process_time() - begun < 10


def test_numbers_of_base_60_are_text():
    assert plain_yaml.read("[1:30, -1:30.5, 90, 1_000, 1e-5, 1:3a]")[0] == ["1:30", "-1:30.5", 90, 1000, 1e-5, "1:3a"]
    assert plain_yaml.read(plain_yaml.write({"a": "1:30"}))[0] == {"a": "1:30"}
