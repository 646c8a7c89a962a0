import torch

from fl_labelskew_plugins.engine.client_state import StateStore, Versions


def state(value, size=4):
    return {"hpm.w": torch.full((size,), float(value))}


def test_only_the_last_states_are_kept(tmp_path):
    store = StateStore(tmp_path)
    for round in range(3):
        for client in range(5):
            assert store.get(client) == {} if round == 0 else store.get(client)["hpm.w"][0] == 10 * client + round - 1
            store.put(client, round, state(10 * client + round))
        store.commit()
    assert [store.get(c)["hpm.w"][0].item() for c in range(5)] == [2, 12, 22, 32, 42]
    assert len(list(tmp_path.glob("*.safetensors"))) == 5  # old rounds are gone


def test_an_interrupted_round_leaves_no_state(tmp_path):
    store = StateStore(tmp_path)
    store.put(1, 0, state(1))
    assert store.select(1) == 1
    store.commit()
    store.put(1, 1, state(2))
    assert store.select(1) == 2
    store.discard()
    assert store.get(1)["hpm.w"][0] == 1
    assert store.select(1) == 2
    assert len(list(tmp_path.iterdir())) == 1


def test_a_checkpoint_survives_later_changes(tmp_path):
    store = StateStore(tmp_path)
    for client in range(3):
        store.put(client, 0, state(client))
    store.commit()
    index = store.flush()
    store.checkpointed()
    for round in (1, 2):
        for client in (0, 1):
            store.put(client, round, state(100 * round + client))
        store.commit()
    # a kill -9 here: a new process knows only the checkpoint's index
    again = StateStore(tmp_path, index, {0: 1})
    assert [again.get(c)["hpm.w"][0].item() for c in range(3)] == [0, 1, 2]
    assert again.select(0) == 2
    assert len(list(tmp_path.iterdir())) == 3  # leftovers are swept


def test_a_checkpoint_reads_only_changed_states(tmp_path, monkeypatch):
    store, files = StateStore(tmp_path), []
    for client in range(4):
        store.put(client, 0, state(client))
    store.commit()
    store.flush()
    store.checkpointed(keep=2)
    of_key = store._file
    monkeypatch.setattr(store, "_file", lambda key: files.append(key) or of_key(key))
    for round in (1, 2):
        store.put(3, round, state(3))
        store.commit()
        store.flush()
        store.checkpointed(keep=2)
    assert {client for client, _ in files} == {3}
    assert len(list(tmp_path.iterdir())) == 4 + 1


def test_a_silo_without_state_loses_none(tmp_path):
    versions = Versions(tmp_path / "states")
    assert not versions.has(0)
    versions.put(0, {})
    versions.put(1, {"w": torch.ones(2)})
    assert versions.has(0)
    assert versions.get(0) == {}
    assert versions.get(1)["w"].tolist() == [1, 1]
    versions.keep({1})
    assert not versions.has(0)
    assert versions.has(1)
