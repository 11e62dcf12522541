"""What stands in the way of a pipeline, all of it at once, each with its remedy.

`penstock doctor` prints the findings; `Pipeline.start` hands them to `require`,
which raises one error that lists them all. A finding is an *error* when the
pipeline could not start, could not copy a published table or could not follow
its changes, and a *warning* when it can, but somebody should know. A pipeline that has
begun starts again in spite of single tables: they become errored, and no other waits.

Nothing here changes anything on the server.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence

from penstock.config import PipelineConfig
from penstock.errors import ErrorKind, PenstockError
from penstock.findings import Finding, Severity, from_error
from penstock.postgres.connection import Session, connect, translated
from penstock.postgres.preflight.publication import publication_findings
from penstock.postgres.preflight.server import (
    announcement_findings,
    failover_findings,
    replication_findings,
    retention_findings,
    role_findings,
    server_findings,
    version_findings,
)
from penstock.postgres.preflight.slot import free_slot, slot_findings
from penstock.postgres.slots import SlotInfo

__all__ = ["Finding", "Severity", "preflight", "report", "require"]

logger = logging.getLogger("penstock.preflight")

LOCK_TIMEOUT = "10s"


Check = Callable[[Session, PipelineConfig, SlotInfo | None], Iterable[Finding]]
"""One that is given the pipeline's slot as it is."""


def preflight(
    config: PipelineConfig, *, slot_patience: float = 0.0, also: Check | None = None
) -> list[Finding]:
    """Everything that is missing or worth knowing, errors first.

    A slot in use may be that of a receiver which was killed a moment ago, and
    the server has not noticed yet: `slot_patience` is how many seconds to wait
    for it before that is a finding. `also` is what a room further out wants looked at.
    """
    found: list[Finding] = []
    try:
        with connect(config.pg_connection, "doctor") as session:
            with translated("preparing the preflight"):
                session.execute(f"SET lock_timeout = '{LOCK_TIMEOUT}'".encode())
            for finding in _findings(session, config, slot_patience, also):
                found.append(finding)  # noqa: PERF402  what is found before a failure counts
    except PenstockError as failure:
        found.append(from_error("connection", failure))
    return sorted(found, key=lambda finding: finding.severity is not Severity.ERROR)


def require(findings: Sequence[Finding], *, begun: bool = False) -> list[Finding]:
    """Raise one error that lists every finding which is an error. Without any, the findings
    that somebody should know of; those of single tables are among them when it has `begun`.
    """
    errors = [
        finding
        for finding in findings
        if finding.severity is Severity.ERROR and not (begun and finding.of_tables)
    ]
    if not errors:
        return list(findings)
    kinds = {finding.kind for finding in errors}
    kind = kinds.pop() if len(kinds) == 1 else ErrorKind.SOURCE_CONFIGURATION
    if len(errors) == 1:
        only = errors[0]
        raise PenstockError(kind, f"{only.subject}: {only.problem}", hint=only.remedy)
    every = "".join(f"\n- {finding}" for finding in errors)
    raise PenstockError(
        kind,
        f"the source is not ready, {len(errors)} things are missing:{every}",
        hint="run the remedies as a superuser or the tables' owner, then `penstock doctor`",
    )


def report(findings: Sequence[Finding]) -> None:
    """Log what somebody should know."""
    for finding in findings:
        remedy = {"remedy": finding.remedy}
        logger.warning("%s: %s", finding.subject, finding.problem, extra=remedy)


def _findings(
    session: Session, config: PipelineConfig, slot_patience: float, also: Check | None
) -> Iterator[Finding]:
    version = list(version_findings(session))
    yield from version
    if _has_errors(version):
        return  # what follows asks for things that such a server does not have
    slot = free_slot(session, config.slot_name, slot_patience)
    general = [*server_findings(session, slot), *role_findings(session)]
    yield from general
    if not _has_errors(general):
        yield from replication_findings(config.pg_connection)
    yield from retention_findings(session)
    yield from failover_findings(session, config)
    yield from slot_findings(session, config, slot)
    if also is not None:
        yield from also(session, config, slot)
    yield from publication_findings(session, config)
    yield from announcement_findings(session)


def _has_errors(findings: Sequence[Finding]) -> bool:
    return any(finding.severity is Severity.ERROR for finding in findings)
