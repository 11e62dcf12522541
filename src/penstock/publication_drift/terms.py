"""The terms on which a table is published: which rows belong to it, and which changes are sent.

Terms matter because the stream does not report these changes:

- A partition that is sent under its root's name brings its rows when it is attached and takes them
  away when it is detached or dropped. A TRUNCATE of a single partition is not sent either. It
  gives the partition a new relfilenode, and so does a TRUNCATE of the root, which is sent; the
  transaction that changed `pg_class` tells the two apart.
- Changes of a table while it is outside the publication are not sent, and a periodic look at the
  catalog can miss that the table was outside. A table that is published through its schema is
  outside while it is in another schema.
- `publish_via_partition_root` decides at each moment whether a partition's changes are sent under
  the root's name or under its own. The other name misses them. The same holds for a table that was
  a partition for a moment.
- Another row filter makes other rows belong. Operations that `publish` left out are not sent later.
- `ALTER TABLE` may rewrite rows, or keep them out of the WAL (`SET UNLOGGED`). The event triggers
  announce both; without triggers the relfilenode and the TOAST table show it.
- A renamed enum label, or a composite type that gets or loses an attribute, changes how stored rows
  are printed.

So the terms of a copy are stored, and compared with what the catalog shows later. Broken terms need
another copy. A partition that came and went between two looks is no longer in the catalog; if it
got rows, the stream contains its Relation message (see `sent_partitions`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, field, replace
from typing import Any, Self

from penstock.states import VisibleXids

_AGED = 2**28
_EVERYTHING = "insert, update, delete, truncate"
_PRINTED_PARTS = {"label": "an enum's label", "row": "a composite type's attributes"}


@dataclass(frozen=True, slots=True)
class Partition:
    """A relation that holds rows of a published table: a partition, or the table itself.

    links: the transactions that tied it to its ancestors; empty for the table itself.
    attached: it may have been attached with rows. False if it was created as a partition.
    file: its relfilenode; 0 if the publication does not send TRUNCATE, where it does not matter.
    touched_by: the transaction that last changed its row in `pg_class`, as TRUNCATE does.
    toast: the oid of its TOAST table. `ALTER TABLE` makes a new one when it rewrites rows;
        TRUNCATE, VACUUM FULL and CLUSTER keep it.
    """

    name: str
    links: tuple[str, ...]
    attached: bool
    file: int = 0
    touched_by: int = 0
    toast: int = 0

    @property
    def own(self) -> bool:
        return not self.links

    def keeps_rows_of(self, before: Partition) -> bool:
        """Whether its file holds the same rows, or only differs in ways that the stream reports."""
        if self.file == before.file or 0 in (self.file, before.file):
            return True
        return self.own and self.toast == before.toast != 0


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of one table, as one look at the catalog saw them.

    entries: the catalog rows that put the table into the publication. They are new rows when the
        table leaves and comes back, and when its filter or column list is set again.
    row_filter: the publication's WHERE clause for the table.
    partitions: by oid; the table itself if it is not partitioned and no event trigger announces
        rewrites.
    options: the transaction that last set the publication's options. `shown` is their value. If
        `options` differs and `shown` does not, options were set and set back, and changes
        may be missing. Partitioned tables and partitions have an empty `shown`: every change of
        the options matters to them.
    columns: each column with the transaction that last touched it. Attaching or detaching a table
        touches all of them. Empty where partitions are published by themselves.
    printed: how parts of the column types are printed: enum labels, composite attributes.
    sends: the publication's `publish`.
    timeline, seen: the server's timeline, and the transactions visible at the look.
    since: transactions visible here (at first: in the copy) have broken nothing.
    """

    entries: frozenset[str] = frozenset()
    row_filter: str | None = None
    partitions: Mapping[int, Partition] = field(default_factory=dict)
    options: str | None = None
    columns: frozenset[str] = frozenset()
    printed: Mapping[str, str] = field(default_factory=dict)
    sends: str = _EVERYTHING
    shown: str = ""
    timeline: int = field(default=0, compare=False)
    seen: VisibleXids | None = field(default=None, compare=False)
    since: VisibleXids | None = field(default=None, compare=False)

    def broken_by(self, now: Terms) -> str | None:
        """What happened between these terms and `now` that the stream does not report; None if
        nothing did."""
        if self.sends != now.sends:
            return f"the publication sends {now.sends or 'nothing'} now"
        if self.row_filter != now.row_filter:
            return "its row filter was changed"
        if not self.entries & now.entries:
            return "it was put into the publication anew"
        if self.shown == now.shown and self.options != now.options:
            return "the publication's options were set anew"
        if self.columns and now.columns and not self.columns & now.columns:
            return "it was attached or detached"
        for oid, before in self.partitions.items():
            after = now.partitions.get(oid)
            if before.own:
                continue
            if after is None or after.links != before.links:
                return f"partition {before.name} was detached or dropped"
        for part, was in self.printed.items():
            if (shown := now.printed.get(part, was)) != was:
                return f"{_PRINTED_PARTS[part.split()[0]]} {was} became {shown}"
        return None

    @property
    def exact(self) -> bool:
        """Whether the publication sends every kind of change."""
        return self.sends == _EVERYTHING

    def joined_by(self, now: Terms) -> dict[int, Partition]:
        """New partitions that may have brought rows."""
        return {
            oid: new
            for oid, new in now.partitions.items()
            if new.attached and oid not in self.partitions
        }

    def judged_since(self, now: Terms, xid: int) -> bool:
        """Whether transaction `xid` ended after `since` and before `now` was read."""
        if self.since is None or now.seen is None:
            return False
        return now.seen.contains(xid) and not self.since.contains(xid)

    def aged(self, now: Terms) -> bool:
        """Whether `since` is so old that new 32-bit transaction ids would soon compare as older."""
        if self.since is None or now.seen is None:
            return now.seen is not None
        return now.seen.xmax - self.since.xmax > _AGED

    def refiled_by(self, now: Terms) -> dict[int, Partition]:
        """Partitions with another relfilenode in `now`.

        Their rows may differ, unless the transaction that touched them last truncated the whole
        table: the stream contains that, and what was before it does not matter.
        """
        refiled = {}
        for oid, new in now.partitions.items():
            # A partition's first file has its oid for a number.
            before = self.partitions.get(oid, new if new.own else replace(new, file=oid))
            if not new.keeps_rows_of(before):
                refiled[oid] = new
        return refiled

    def send_the_same(self, other: Terms) -> bool:
        """Whether the same changes of the table itself are sent under both terms."""
        return replace(self, partitions={}) == replace(other, partitions={})

    def to_json(self) -> dict[str, Any]:
        return {
            "entries": sorted(self.entries),
            "row_filter": self.row_filter,
            "options": self.options,
            "columns": sorted(self.columns),
            "printed": dict(self.printed),
            "sends": self.sends,
            "shown": self.shown,
            "timeline": self.timeline,
            "seen": self.seen and str(self.seen),
            "since": self.since and str(self.since),
            "partitions": {
                str(oid): [each.name, list(each.links), *astuple(each)[2:]]
                for oid, each in self.partitions.items()
            },
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(
            frozenset(data["entries"]),
            data["row_filter"],
            {
                int(oid): Partition(name, tuple(links), *others)
                for oid, (name, links, *others) in data["partitions"].items()
            },
            data.get("options"),
            frozenset(data.get("columns", ())),
            data.get("printed", {}),
            data.get("sends", _EVERYTHING),
            data.get("shown", "unknown"),  # to an earlier release
            data.get("timeline", 0),
            *(data.get(name) and VisibleXids.parse(data[name]) for name in ("seen", "since")),
        )
