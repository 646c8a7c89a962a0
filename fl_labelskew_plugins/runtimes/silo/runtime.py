"""Cross-silo runs (``backend: GRPC``)."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard

import torch
from fl_labelskew_registry import LabelSkewError, RunError

from fl_labelskew_plugins.engine.threads import warn_if_too_many
from fl_labelskew_plugins.ledgers.audit import Audit
from fl_labelskew_plugins.ledgers.privacy import ledger_of
from fl_labelskew_plugins.machine import log
from fl_labelskew_plugins.machine.text import counted
from fl_labelskew_plugins.recipe import parse as recipes
from fl_labelskew_plugins.recipe.compatibility import check_extras
from fl_labelskew_plugins.recipe.conflicts import quorum
from fl_labelskew_plugins.runs import status
from fl_labelskew_plugins.runs.checkpoint import Checkpoint
from fl_labelskew_plugins.runs.record import Record
from fl_labelskew_plugins.runs.session import Session, assemble, build, of_classes
from fl_labelskew_plugins.runtimes.base import Runtime
from fl_labelskew_plugins.runtimes.processes import together
from fl_labelskew_plugins.runtimes.silo import facts, keys
from fl_labelskew_plugins.runtimes.silo.client import Answers, SiloClient
from fl_labelskew_plugins.runtimes.silo.connecting import SiloTransport
from fl_labelskew_plugins.runtimes.silo.guard import guard_of
from fl_labelskew_plugins.runtimes.silo.listening import ServerTransport
from fl_labelskew_plugins.runtimes.silo.server import SiloExchange, SiloServer, TrainingExchanges, server_session
from fl_labelskew_plugins.runtimes.silo.survey import SurveyAnswers, SurveyExchange
from fl_labelskew_plugins.runtimes.spool import Spool
from fl_labelskew_plugins.surveys.survey import Survey

if TYPE_CHECKING:
    from fl_labelskew_plugins.runtimes.silo.certs import Revocations


class CrossSilo(Runtime):
    """A server and its silos, or one of them."""

    roles: tuple[str, ...] = ("server", "client")
    _transport: ServerTransport | SiloTransport | None = None
    _audit: Audit | None = None

    def delegated(self) -> bool:
        """Start the server and all silos, or run a silo."""
        if self.options.role == "server":
            return False
        if self.options.role == "client":
            self._silo()
        elif self.options.resume and self._over(self.folder.load_checkpoint(tensors=False)):
            return False  # the silos of this machine have ended
        else:
            self._all_here()
        return True

    def preview(self) -> Session:
        """The session of this machine's part, without network."""
        if self.options.role is None and not self.recipe.own_data:
            return build(self.recipe)
        sizes = [0] * self.recipe.train.client_num_in_total
        if self.options.role == "server":
            return self._offline_session(sizes)
        ranks = [self.options.rank] if self.options.rank else range(1, len(sizes) + 1)
        counts: list[torch.Tensor] = []
        first: list[str] = []
        for rank in ranks:
            recipe = recipes.silo(self.recipe, rank)
            check_extras(recipe)
            silo = facts.load(recipe, rank - 1)
            first = first or silo.data.class_names
            if difference := facts.differing(silo.data.class_names, list(first), f"in silo {ranks[0]}'s data"):
                raise LabelSkewError(f"silo {rank}: {difference}")
            sizes[rank - 1] = silo.facts.samples
            counts.append(torch.from_numpy(silo.counts))
        session = assemble(recipe, silo.data, *silo.indices(rank - 1), sizes)
        return replace(session, counts=torch.stack(counts))

    def _offline_session(self, sizes: list[int]) -> Session:
        test, moments = facts.test_data(self.recipe), self.folder.moments()
        return server_session(self.recipe, test, sizes, moments, exact=self.folder.exact())

    def session(self) -> Session:
        """The server's session; waits for the silos, unless all rounds are done there."""
        checkpoint = self.folder.load_checkpoint(tensors=False) if self.options.resume else None
        if self._over(checkpoint) and (self.options.role is None or self.folder.summary.exists()):
            return self._offline_session(list(checkpoint.sizes))
        exchanges: Callable[[SiloServer], TrainingExchanges] = TrainingExchanges.single
        if self.recipe.only_sums:
            from fl_labelskew_plugins.runtimes.silo.summed import exchanges
        self._server = self._listen(exchanges, checkpoint)
        return self._server.gather()

    def survey(self) -> Survey:
        """Write the survey to the run's folder."""
        server = self._listen(lambda server: [SurveyExchange(server)], survey=True)
        (exchange,) = server.exchanges
        assert isinstance(exchange, SurveyExchange)
        survey = exchange.survey(self._names)
        survey.write(self.folder.path, "survey")
        self.show.note(f"results: {self.folder.path / 'survey'}.csv, .json and .png")
        return survey

    @cached_property
    def _names(self) -> list[str]:
        return status.names(self.recipe.client_specific.data_silo_config, self.recipe.train.client_num_in_total)

    def _listen(
        self,
        exchanges: Callable[[SiloServer], Sequence[SiloExchange]],
        checkpoint: Checkpoint | None = None,
        *,
        survey: bool = False,
    ) -> SiloServer:
        comm, train = self.recipe.comm, self.recipe.train
        seen = status.Silos(self._names)
        self._audit = Audit(observe=seen.hear, digests=comm.audit_digests)
        tls, revoked = self._certificate(comm.certs, "server")
        transport = ServerTransport(
            self.options.server or comm.listen_address or comm.server_address,
            silos=train.client_num_in_total,
            tls=tls,
            spool=Spool(comm.upload_memory_mb * 2**20, self.folder.path),
            audit=self._audit,
            revoked=revoked,
        )
        self._transport = transport
        self.folder.hold()  # after the transport, so that a failure to listen creates no folder
        if revoked is not None:
            revoked.save_copy()
        self.folder.set_status(state=status.WAITING, address=transport.address, quorum=quorum(self.recipe))
        self._audit.open(self.folder.path, "server")
        self.show.note(f"listening on {transport.address}" + ("" if comm.certs else ", only for this machine (no TLS)"))
        host, resume = self.host(self.recipe, self.folder.path), self.options.resume_command(self.folder.path)
        return SiloServer(
            host, transport, self.recipe, checkpoint, self.show, resume, self.folder, seen, exchanges, survey=survey
        )

    def run(self, session: Session, record: Record) -> None:
        """Run the server's part."""
        if self._transport is not None:
            self._server.train(record)

    def _over(self, checkpoint: Checkpoint | None) -> TypeGuard[Checkpoint]:
        return checkpoint is not None and checkpoint.round == self.recipe.train.comm_round

    def close(self) -> None:
        """Close the connections and the audit log."""
        if self._transport is not None:
            self._transport.stop_receive_message()
        if self._audit is not None and (last := self._audit.close()):
            self.show.note(last)

    def _silo(self) -> None:
        rank = self.options.rank
        assert rank is not None  # RunOptions.check
        recipe = recipes.silo(self.recipe, rank, survey=self.options.survey)
        data = facts.load(recipe, rank - 1)
        guard, ledger = guard_of(recipe, rank, self.folder.path), ledger_of(recipe, self.folder.path)
        self.folder.hold()
        comm = recipe.comm
        held = of_classes(data.data.class_names, torch.from_numpy(data.counts)[None], data.facts.samples)
        self.show.note(f"data: {recipe.data.dataset}, {held}")
        self._audit = Audit(digests=comm.audit_digests)
        self._audit.open(self.folder.path, keys.silo_name(rank))
        tls, revoked = self._certificate(comm.certs, keys.silo_name(rank))
        if revoked is not None:
            revoked.save_copy()
        transport = SiloTransport(
            self.options.server or comm.server_address,
            rank,
            tls=tls,
            spool=Spool(comm.upload_memory_mb * 2**20, self.folder.path),
            print_line=self.show.note,
            audit=self._audit,
            pin=guard.check_server if guard is not None and guard.policy.server_fingerprint else None,
            revoked=revoked,
        )
        self._transport = transport
        host = self.host(recipe, self.folder.path, rank=rank)
        answers: Callable[[SiloClient], Answers] = SurveyAnswers if self.options.survey else Answers
        if recipe.only_sums and not self.options.survey:
            from fl_labelskew_plugins.runtimes.silo.summed import SummedAnswers

            answers = SummedAnswers
        client = SiloClient(host, transport, rank, recipe, data, self.folder.path, self.show, guard, ledger, answers)
        transport.start()
        client.run()
        client.flood.close()
        if client.failure is not None:
            raise client.failure

    @cached_property
    def _passphrase(self) -> keys.Passphrase:
        return keys.Passphrase()

    def _certificate(self, folder: str | None, name: str) -> tuple[keys.Files | None, Revocations | None]:
        if folder is None:
            return None, None
        files = self._load_certificate(Path(folder), name)
        from fl_labelskew_plugins.runtimes.silo.certs import Revocations

        for warning in files.warnings:
            log.warn(warning)
        if (authority := Path(folder) / "ca.key").exists():
            what = f"{authority}: the authority's key; its readers can create certificates of other silos"
            log.warn(f"{what}; move it to the machine where certificates are created")
        copy = self.folder.path / keys.REVOKED
        return files, Revocations(Path(folder), files, copy=copy, print_line=self._report_list)

    def _load_certificate(self, folder: Path, name: str) -> keys.Files:
        keys.require()
        from fl_labelskew_plugins.runtimes.silo import certs

        return certs.read(folder, name, self._passphrase)

    def _report_list(self, line: str) -> None:
        self.show.note(line)
        if self._audit is not None:
            self._audit.note("list", reason=line)

    def _passphrase_of_all(self, silos: int) -> dict[str, str]:
        """Environment variables with the passphrase of all keys here."""
        folders = {"server": self.recipe.comm.certs}
        for rank in range(1, silos + 1):
            silo = recipes.silo(self.recipe, rank, survey=self.options.survey)
            check_extras(silo)
            folders[keys.silo_name(rank)] = silo.comm.certs
        for name, folder in folders.items():
            if folder is not None and keys.encrypted(keys.content(Path(folder) / f"{name}.key")):
                self._load_certificate(Path(folder), name)
        return self._passphrase.environment()

    def _all_here(self) -> None:
        count = self.recipe.train.client_num_in_total
        warn_if_too_many(count, self.recipe.device.threads)
        passphrase = self._passphrase_of_all(count)
        options, path, folder = self.options, self.recipe.path, self.folder.path
        address = ("--server", options.server or f"127.0.0.1:{free_port()}")
        self.show.note(f"starting the server and {counted(count, 'silo')} on this machine; logs and results: {folder}")
        server = options.command(path, folder, "--role", "server", *address, resume=options.resume is not None)
        commands = {"server": server}
        for rank in range(1, count + 1):
            role = ("--role", "client", "--rank", str(rank))
            commands[f"silo {rank}"] = options.command(path, folder / "silos" / f"silo-{rank}", *role, *address)
        try:
            together(commands, environment=options.environment(folder) | passphrase)
        except RunError as error:
            if self.folder.recipe.exists():
                error.args = (f"{error}; {options.resume_command(folder)}",)
            raise


def free_port() -> int:
    """A free port on this machine."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
