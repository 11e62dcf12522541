"""What a journal knows of its source's own past, in `timeline.json`.

Positions alone do not tell whether a server has all that the journal has. Its timeline
does, which is another one after each promotion; and so does having been seen behind the
journal's end, which a server hides again by writing on.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from penstock.journal.files import replace
from penstock.schema import Lsn

FILE = "timeline.json"


@dataclass(frozen=True, slots=True)
class SourceHistory:
    """The timeline that the source was on, None before anybody looked; and where its WAL
    ended when it was found behind the journal."""

    timeline: int | None = None
    set_back_to: Lsn | None = None

    @classmethod
    def of(cls, root: Path) -> Self:
        """As it is kept with the journal at `root`."""
        try:
            data: dict[str, Any] = json.loads((root / FILE).read_text("utf-8"))
        except FileNotFoundError:
            return cls()
        set_back_to = data.get("set_back_to")
        return cls(data.get("timeline"), Lsn.parse(set_back_to) if set_back_to else None)

    def keep(self, root: Path) -> None:
        data: dict[str, Any] = {}
        if self.timeline is not None:
            data["timeline"] = self.timeline
        if self.set_back_to is not None:
            data["set_back_to"] = str(self.set_back_to)
        replace(root / FILE, json.dumps(data))
