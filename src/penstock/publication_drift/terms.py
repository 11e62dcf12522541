"""The terms on which a table is published, and which changes of them the stream leaves out.

The stream carries changes of rows. It does not carry what happens to rows by the
way in which they belong to a published table:

- A partition that is sent under its root's name brings its rows when it is attached
  and takes them when it is detached or dropped. A TRUNCATE of it alone is not sent
  either. It gives the partition another file, like one of the root, which is sent: the
  transaction that made the file tells them apart.
- What happens to a table while it is outside the publication is not sent, and nobody
  who looks only now and then can see that it was outside for a moment. It is outside
  while it is in another schema, too, where the publication has the schema.
- What happens to partitions is sent under their root's name, or under their own, as
  `publish_via_partition_root` is at that moment; the other one misses it. So does a
  table that is published by itself and was a partition for a moment.
- Another row filter makes other rows belong. What happened while the publication left out
  deletes, say, is not sent when it has them again.
- `ALTER TABLE` may rewrite a table's rows, or leave them out of the WAL for a while (`SET
  UNLOGGED`). The event triggers announce both; without them the table's other file tells.
- Rows show other values when a label of an enum is renamed, or when a composite type gets or
  loses an attribute: these are stored as numbers, and put into words when they are read.

So the terms of a copy are kept, and compared with those that the catalog shows
later. Where they are broken only another copy helps. A partition that came and went
between two looks is not in the catalog any more; if it got rows, the stream has told of
it before the first of them, and of the name that it was sent under.
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
    """A relation that holds rows of a table: of a partitioned one, or its own.

    `links` are the transactions that tied it to its ancestors; a table of its own has none. A
    partition that may have been `attached` may have had rows before; one that was created as
    such had none. `file` is where its rows are (0 where nobody wants to hear of a TRUNCATE: the
    publication leaves them out), and `touched_by` the transaction that changed its entry in the
    catalog last: a TRUNCATE does, when it gives it another file. `toast` is the table that
    has its large values: `ALTER TABLE` makes another one when it rewrites rows, and
    TRUNCATE, VACUUM FULL and CLUSTER do not.
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
        """Whether its file is of the same rows, or of others that the stream tells of."""
        if self.file == before.file or 0 in (self.file, before.file):
            return True
        return self.own and self.toast == before.toast != 0


@dataclass(frozen=True, slots=True)
class Terms:
    """`entries` name the rows of the catalog that put the table into the publication: made
    anew when it leaves and comes back, and when its filter or column list is set anew.
    `printed` is what the parts of its columns' types are printed as: the labels of enums,
    the attributes of composite types. The terms were `seen` together with these
    transactions, on this `timeline` of the server's. Those before `since`, at first the copy's,
    are known to have broken nothing.

    `options` is the transaction that last set the publication's options, and `shown` stands for
    what they are: a change of them that shows is no matter, one that was taken back may have
    left changes out. Tables that are partitioned or partitions have nothing `shown`, for any
    change of them matters. `columns` has each column with the transaction that last touched it:
    to attach or detach a table touches all of them. None where partitions are published by
    themselves, and it makes no difference. `sends` is the publication's `publish`.
    `partitions` has the table itself, where it is not partitioned and nobody announces what
    is done to it.
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
        """What has happened since that no change in the stream tells of; None if nothing has."""
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
        """Whether everything is sent that happens to the table's rows."""
        return self.sends == _EVERYTHING

    def joined_by(self, now: Terms) -> dict[int, Partition]:
        """The partitions that are new, and may have brought rows."""
        return {
            oid: new
            for oid, new in now.partitions.items()
            if new.attached and oid not in self.partitions
        }

    def judged_since(self, now: Terms, xid: int) -> bool:
        """Whether a transaction ended after `since`, and before these terms were seen."""
        if self.since is None or now.seen is None:
            return False
        return now.seen.contains(xid) and not self.since.contains(xid)

    def aged(self, now: Terms) -> bool:
        """Whether `since` is so long ago that the stream's transaction ids would soon seem
        to be older than it: they have 32 bits."""
        if self.since is None or now.seen is None:
            return now.seen is not None
        return now.seen.xmax - self.since.xmax > _AGED

    def refiled_by(self, now: Terms) -> dict[int, Partition]:
        """The partitions whose rows are in another file now.

        Rows may be other ones then, unless the transaction that touched it last truncated the
        whole table, which the stream tells: what was before does not matter any more.
        """
        refiled = {}
        for oid, new in now.partitions.items():
            # A partition's first file has its oid for a number.
            before = self.partitions.get(oid, new if new.own else replace(new, file=oid))
            if not new.keeps_rows_of(before):
                refiled[oid] = new
        return refiled

    def send_the_same(self, other: Terms) -> bool:
        """Whether on both terms the same changes of the table's own are sent."""
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
