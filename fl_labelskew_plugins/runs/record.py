"""The state of a run in progress, and its results."""

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from fl_labelskew_registry import LabelSkewError, RunError, mistake
from torch import Tensor

from fl_labelskew_plugins import plots
from fl_labelskew_plugins.engine import metrics
from fl_labelskew_plugins.engine.aggregate import check_upload
from fl_labelskew_plugins.engine.client_state import StateStore
from fl_labelskew_plugins.engine.local import meta_tensors
from fl_labelskew_plugins.engine.server import Server
from fl_labelskew_plugins.ledgers import privacy
from fl_labelskew_plugins.machine import log, signals
from fl_labelskew_plugins.machine.files import read_lines
from fl_labelskew_plugins.machine.text import clean, comma_separated
from fl_labelskew_plugins.ops import added
from fl_labelskew_plugins.recipe import compatibility
from fl_labelskew_plugins.recipe.network_file import changed as changed_file
from fl_labelskew_plugins.recipe.network_file import files
from fl_labelskew_plugins.recipe.plugins import object_description
from fl_labelskew_plugins.runs import model_file, status
from fl_labelskew_plugins.runs.checkpoint import Checkpoint
from fl_labelskew_plugins.runs.environment import environment, peak_memory
from fl_labelskew_plugins.runs.folder import RunFolder, summary
from fl_labelskew_plugins.runs.measure import best_test, main_measure
from fl_labelskew_plugins.runs.model_file import about
from fl_labelskew_plugins.runs.progress import Pause, Progress
from fl_labelskew_plugins.runs.session import Session, made_up, watch
from fl_labelskew_plugins.runs.stopping import reason_to_stop
from fl_labelskew_plugins.runs.tracking import Trackers


class Record:
    """The state of a run, see also :class:`.Checkpoint`; ``next_round``: number of complete rounds."""

    def __init__(
        self, session: Session, folder: RunFolder, progress: Progress, *, resume: bool, pause: Pause | None = None
    ) -> None:
        recipe = session.recipe
        self.session = replace(session, start=meta_tensors(session.start))  # frees the weights of round 0
        self.folder, self.progress, self.pause = folder, progress, pause
        loaded = folder.load_checkpoint(session.trainer.device) if resume else None
        if loaded is not None:
            try:
                check_upload(loaded.weights, session.start, where=str(folder.checkpoint))
            except RunError as error:
                raise LabelSkewError(str(error)) from None
        checkpoint = loaded or Checkpoint(weights=session.start)
        self.next_round, self.weights = checkpoint.round, checkpoint.weights
        self.shared, self.memory = checkpoint.shared, checkpoint.memory
        self.opened, self.medians = checkpoint.opened, checkpoint.medians
        self.confusion: Tensor | None = None  # (C, C), of this process's last test on the global test set
        self.test_samples: Sequence[int | None] = ()  # of each client in its last test
        self.run: str = folder.environment["run"] if resume else secrets.token_hex(8)
        self._has_model = recipe.train.reference != "local"
        earlier = folder.indices(self.next_round) if loaded else ()
        self.states = StateStore(folder.states, checkpoint.states, checkpoint.selections, earlier)
        self.stopped = ""  # reason of an early end
        self.cut = False  # whether the run stops in the middle of a round, which resuming repeats
        self._seconds = checkpoint.seconds
        self._begun = time.perf_counter()
        self._saved = self.next_round
        self._describe(resume)
        self._best = self._best_so_far() if resume else -1.0
        self.watch = watch(session, folder.diagnostics)
        ledger = None if recipe.common.across_silos else privacy.ledger_of(recipe, folder.path)
        self.privacy = None if ledger is None else privacy.ClientAccounts(ledger, recipe, session.sizes, self.run)
        self._trackers = Trackers(recipe)

    @property
    def seconds(self) -> float:
        """Duration so far, including earlier processes."""
        return self._seconds + time.perf_counter() - self._begun

    @contextlib.contextmanager
    def tracked(self) -> Iterator[None]:
        """Report the run to trackers while the block runs."""
        state = status.FAILED
        try:
            self._trackers.begin(self.folder, self.next_round)
            yield
            state = status.FINISHED if self.over else status.PAUSED
        except (KeyboardInterrupt, GeneratorExit):
            state = status.STOPPED
            raise
        finally:
            self._trackers.close(state)

    @property
    def over(self) -> bool:
        """Whether no round is left."""
        return bool(self.stopped) or self.next_round == self.session.federation.rounds

    def tests_own_models(self, round: int) -> bool:
        """Whether clients test their own models in this round."""
        recipe = self.session.recipe
        return recipe.validation.personalised and recipe.tests(round)

    def complete_round(self, line: dict[str, Any], server: Server, *, seconds: float) -> None:
        """Record a complete round, with its line of metrics."""
        with signals.uninterrupted():
            # operations that may fail come first: resuming can drop extra lines, but not an extra round
            self.folder.append(self.folder.metrics, line)
            timing = {"round": line["round"], "seconds": round(seconds, 4)}
            self.folder.append(self.folder.timings, timing | peak_memory(self.session.trainer.device))
            if self.watch is not None:
                self.watch.write(line["round"])
            self.states.commit()
            self.next_round, self.weights = line["round"] + 1, server.weights
            self.shared, self.memory, self.opened = server.shared, server.memory, server.opened
            self._keep_best(line.get(main_measure([line]).key, -1.0))
            # also after the last round, since clients leave before results are written
            every, last = self.session.recipe.tracking.checkpoint_every, self.session.federation.rounds
            if self.session.recipe.only_sums:
                every = 1  # silos open the sum of a round only once, so it must not be lost
            if self.next_round % every == 0 or self.next_round == last:
                self._save()
        self.progress.round(line, seconds)
        self._trackers.round(line, seconds)
        if self.progress.on_line is not None:
            try:
                self.progress.on_line(line)
            except StopIteration as end:
                self.stopped = clean(str(end), 300) or "by a callback"
        self._check_stop()
        if self.stopped and self._saved != self.next_round:
            with signals.uninterrupted():
                self._save()

    def _check_stop(self) -> None:
        stop = self.session.recipe.train.stop
        if stop is not None and not self.stopped and self.next_round < self.session.federation.rounds:
            self.stopped = reason_to_stop(stop, self.folder.lines)

    def abandon(self) -> None:
        """Discard an incomplete round, and save the complete ones."""
        with signals.uninterrupted():
            self.folder.still_held()  # another process may own these states
            self.states.discard()
            if self.next_round != self._saved:
                self._save()

    def finish(self, card: Callable[..., str] | None = None) -> None:
        """Write the results after the last round; ``card`` makes the text of ``MODEL_CARD.md``."""
        folder, session = self.folder, self.session
        if self._has_model:
            model_file.save(self.weights, folder.path / "model.safetensors", about(session, round=self.next_round))
        lines, file = read_lines(folder.metrics), folder.path / "curves.png"
        result = summary(lines, session.recipe.validation.last_rounds) | self._personalised_models()
        result["seconds"] = round(self.seconds, 2)
        if self.stopped:
            result["stopped"] = self.stopped
        if "client_accuracy" in result:
            result["clients"] = self._clients(result["client_accuracy"])
        title = f"{session.recipe.train.reference or session.recipe.method_name} on {session.recipe.data.dataset}"
        plots.of_run(file, lambda: plots.curves(lines, file, title=title, client_models=session.client_models))
        self._draw_partition()
        self._write_confusion(title)
        if self.watch is not None:
            self.watch.draw()
        if card is not None and self._has_model:
            folder.write_text("MODEL_CARD.md", card(session, lines, result, best=folder.best.exists()))
        folder.write_json("summary.json", result)
        self._trackers.finish(result)

    def _best_so_far(self) -> float:
        """Return the best accuracy of complete rounds, or -1; delete a saved best model of another round."""
        lines, file = self.folder.lines, self.folder.best
        line, metadata = best_test(lines), model_file.read_metadata(file)
        if line is None or metadata is None or metadata.round != line["round"] + 1:
            file.unlink(missing_ok=True)
        return -1.0 if line is None else float(line[main_measure(lines).key])

    def _keep_best(self, accuracy: float) -> None:
        if accuracy > self._best and self._has_model:
            self._best, at = accuracy, self.next_round
            if self.session.recipe.tracking.keep_best:
                model_file.save(self.weights, self.folder.best, about(self.session, round=at))
            else:
                self.folder.best.unlink(missing_ok=True)

    def _save(self) -> None:
        state = Checkpoint(
            self.next_round,
            self.weights,
            self.shared,
            self.memory,
            seconds=self.seconds,
            sizes=self.session.sizes,
            opened=self.opened,
            medians=self.medians,
        )
        self.folder.save_checkpoint(state, self.states, keep=self.session.recipe.tracking.keep_checkpoints)
        self._saved = self.next_round

    def _personalised_models(self) -> dict[str, float]:
        """Write the clients' own models; return their mean accuracy on own test splits."""
        method, local = self.session.method, self.session.trainer
        accuracies = []
        stored = sorted(self.states.committed) if local.indices else []  # without local clients there are no states
        for client in stored:
            model = self.session.own_model(self.states.get(client))
            if model is None:
                break
            check_upload(model, self.weights, where=f"what {type(method).__name__}.personalised returned")
            (self.folder.path / "clients").mkdir(exist_ok=True)
            clients, at = self.session.clients, self.states.committed[client] + 1
            name = str(client) if clients is None else clients.names[client]
            metadata = about(self.session, round=at, client=client, client_name=name)
            model_file.save(model, self.folder.path / "clients" / f"client{client:06d}.safetensors", metadata)
            if len(local.test_indices[client]):
                logits, labels = local.predict(local.test_indices[client], model)
                accuracies.append(float((logits.argmax(1) == labels).float().mean()))
        if not self._has_model:
            return {}  # without a global model, the last round has already tested them
        return {"private_models_accuracy": added(accuracies) / len(accuracies)} if accuracies else {}

    def _clients(self, accuracies: Sequence[float | None]) -> list[dict[str, Any]]:
        session, count = self.session, len(accuracies)
        sizes = [None] * count if session.recipe.only_sums else [n or None for n in session.sizes]
        splits = session.trainer.test_indices  # for a run resumed after its last test
        tests = self.test_samples or [len(splits.get(client, ())) or None for client in range(count)]
        columns = zip(session.client_names, sizes, tests, accuracies, strict=True)
        keys = ("name", "training_samples", "test_samples", "accuracy")
        return [dict(zip(keys, column, strict=True)) for column in columns]

    def _describe(self, resume: bool) -> None:
        session, folder, recipe, method = self.session, self.folder, self.session.recipe, self.session.method
        now = environment(session.trainer.device) | {
            "run": self.run,
            "data": session.data,
            "partition": session.clients and session.clients.digest,
            "method": recipe.method_name,
            "host": "fedml" if recipe.hosted else "none",
            "optimizer": {"name": recipe.train.federated_optimizer, "source": "own"},
            "deviations": [*method.deviations(), *recipe.optimizer.deviations(), *compatibility.overruled(recipe)],
            "report": method.report(session.federation),
            "personal_models": method.personalises(),
            "class_names": session.class_names,
            "made_up_data": made_up(recipe),
            "input_shape": list(session.input_shape),
            "dtype": session.dtype,
            "normalisation": {"mean": session.mean, "std": session.std},
            "notes": sorted(session.notes),
        }
        if network_files := files(recipe):
            now["network_files"] = network_files
        if recipe.objects:
            now["objects"] = {section: object_description(plugin) for section, plugin in recipe.objects.items()}
        if resume:
            self._compare(now)
            folder.truncate(self.next_round)
            self._change_rounds()
            self._check_stop()  # also of a run that was killed before its results were written
            return
        folder.write_json("environment.json", now)
        for name, text in session.notes.items():
            folder.write_text(name, text)
        if session.clients is not None:
            folder.write_text("partition.json", session.clients.record())
            self._draw_partition()
        folder.write_text("recipe.yaml", recipe.dump())  # last: a folder with a recipe can be resumed

    def _change_rounds(self) -> None:
        recipe, last = self.session.recipe, self.next_round - 1
        observed = last % recipe.tracking.diagnostics_every == 0
        stop = None if recipe.train.stop is None else recipe.train.stop.model_dump()
        self.folder.change_rounds(recipe.train.comm_round, stop, tested=recipe.tests(last), observed=observed)
        digest, file = model_file.recipe_hash(recipe), self.folder.best
        if (metadata := model_file.read_metadata(file)) is not None and metadata.recipe != digest:
            model_file.save(model_file.read(file)[1], file, metadata.model_copy(update={"recipe": digest}))

    def _draw_partition(self) -> None:
        session, file = self.session, self.folder.path / "partition.png"
        if session.clients is not None and not file.exists():
            title = f"{session.recipe.data.dataset}, {session.recipe.partition.partition_method}"
            counts, names, classes = session.clients.counts, session.clients.names, session.class_names
            plots.of_run(file, lambda: plots.heat_map(counts, classes, file, title=title, clients=names))

    def _write_confusion(self, title: str) -> None:
        session = self.session
        if not len(session.trainer.test.y):
            return
        if self.confusion is None:  # resumed after the last test
            logits, labels = session.trainer.predict(weights=self.weights)
            self.confusion = metrics.confusion(logits.argmax(1), labels, len(session.class_names)).cpu()
        matrix, classes, file = self.confusion.tolist(), session.class_names, self.folder.path / "confusion.png"
        names = [clean(name) for name in classes]
        rows = [[name, *counts] for name, counts in zip(names, matrix, strict=True)]
        self.folder.write_text("confusion.csv", comma_separated(["class", *names], rows) + "\n")
        plots.of_run(file, lambda: plots.confusion(matrix, classes, file, title=f"{title}, final model"))

    def _compare(self, now: dict[str, Any]) -> None:
        """Raise LabelSkewError if data or code changed."""
        before = self.folder.environment
        changed = [key for key in ("data", "partition") if key in before and before[key] != now[key]]
        if changed:
            subject = "the samples" if "data" in changed else "the clients' samples"
            use = "the original data set, or start a new run"
            raise mistake(f"--resume {self.folder.path}", f"{subject} differ from the run's", use)
        if change := changed_file(before.get("network_files", {}), now.get("network_files", {})):
            raise mistake(f"--resume {self.folder.path}", change, "the original file, or start a new run")
        if before["optimizer"]["source"] != "own":  # FedML's code keeps another state
            problem = f"this run's {now['optimizer']['name']} has run in FedML's code, which this version does not use"
            raise mistake(f"--resume {self.folder.path}", problem, "a new run")
        for key in ("versions", "threads", "device", "cpu_capability"):
            if before[key] != now[key]:
                log.warn(f"{key} differs from the start of the run, so the last digits of results may differ")
