"""`penstock doctor`: everything that is missing, at once, each with its remedy."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import typer
from rich.console import Console
from rich.text import Text

from penstock.cli.main import ExitCode
from penstock.config import FileConfig
from penstock.journal.preflight import journal_findings
from penstock.pipeline.assembly import Assembly
from penstock.postgres.preflight import Finding, Severity, preflight

_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow"}


def examine(path: Path, *, as_json: bool) -> ExitCode:
    """Look at everything, print what was found, and say whether a pipeline could run."""
    assembly = Assembly.of_file(path)
    config = assembly.config
    local = {each.name: each.findings() for each in assembly.requirements()}
    source = preflight(config, also=journal_findings)
    findings = [*itertools.chain(*local.values()), *source]
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    if as_json:
        typer.echo(json.dumps(_as_json(findings), indent=2))
    else:
        fine = [name for name, found in local.items() if not found]
        _print(config, fine, findings, len(errors))
    return ExitCode.FAILED if errors else ExitCode.OK


def _print(config: FileConfig, fine: list[str], findings: list[Finding], errors: int) -> None:
    console = Console(highlight=False, soft_wrap=True)
    if fine:
        console.print(Text.assemble(("ok", "green"), f"       {', '.join(fine)}"))
    if not any(_blocks_source(finding) for finding in findings):
        source = f"Postgres, publication {config.publication_name}, slot {config.slot_name}"
        console.print(Text.assemble(("ok", "green"), f"       {source}"))
    for finding in findings:
        label = (f"{finding.severity:<8} ", _STYLES[finding.severity])
        console.print(Text.assemble(label, f"{finding.subject}: {finding.problem}"))
        if finding.remedy:
            console.print(Text.assemble("         ", (finding.remedy, "cyan")))
    warnings = len(findings) - errors
    verdict = f"not ready: {errors} to mend" if errors else "ready"
    told = f", {warnings} worth knowing" if warnings else ""
    console.print(Text(verdict + told, style="bold red" if errors else "bold green"))


def _blocks_source(finding: Finding) -> bool:
    return finding.severity is Severity.ERROR and finding.kind.startswith("source.")


def _as_json(findings: list[Finding]) -> dict[str, object]:
    return {
        "ready": not any(finding.severity is Severity.ERROR for finding in findings),
        "findings": [
            {
                "severity": str(finding.severity),
                "subject": finding.subject,
                "problem": finding.problem,
                "remedy": finding.remedy,
                "kind": str(finding.kind),
            }
            for finding in findings
        ],
    }
