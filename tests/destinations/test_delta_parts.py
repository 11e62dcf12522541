"""The parts of the Delta destination that need no Spark."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JError, Py4JNetworkError

from penstock.changes.batches import TableRows
from penstock.destinations import DeltaDestination
from penstock.destinations.delta import location, statements
from penstock.destinations.delta.durability import Durability
from penstock.destinations.delta.failures import explain, is_conflict, is_fenced
from penstock.destinations.delta.first_commit import write_first_commit
from penstock.destinations.delta.history import CopyPlace, copy_place
from penstock.destinations.delta.log import user_metadata
from penstock.destinations.delta.mark import Mark, newest
from penstock.destinations.delta.ownership import Places, require_own
from penstock.destinations.schema_change import SchemaChangeAction
from penstock.errors import ErrorKind, PenstockError
from penstock.schema import Lsn, TableId, TableName
from penstock.testing.sample_tables import LINES, NOTES

COPY = Mark("shop", TableId(5), "copy-1")
BATCH = Mark("shop", TableId(5), "copy-1", Lsn(0x1600000020))


@pytest.mark.parametrize("mark", [COPY, BATCH, BATCH.carry(), replace(COPY, table_name="a.b")])
def test_a_mark_is_read_as_it_was_written(mark: Mark) -> None:
    assert Mark.loads(mark.dumps()) == mark


@pytest.mark.parametrize(
    "metadata", [None, "", "theirs", "[]", "{}", '{"penstock": {}}', '{"penstock": null}', "7"]
)
def test_what_others_write_into_a_commit_is_no_mark(metadata: str | None) -> None:
    assert Mark.loads(metadata) is None


def test_a_carried_mark_counts_only_where_no_other_is_left() -> None:
    old = Mark("shop", TableId(5), "copy-1", Lsn(1))
    assert newest([old.carry().dumps(), BATCH.dumps(), old.dumps()]) == BATCH
    assert newest([None, BATCH.carry().dumps(), old.carry().dumps()]) == BATCH.carry()
    assert newest(["theirs", None]) is None


def test_keys_become_literals_that_cannot_be_misread() -> None:
    assert statements.key_list(NOTES.key, [(1,), (-7,)]) == "`id` IN (1, -7)"
    texts = statements.key_list(NOTES.key, [("plain",), ("o'h",), ("☃\\",)])
    assert texts == ("`id` IN ('plain', decode(X'6f2768', 'UTF-8'), decode(X'e298835c', 'UTF-8'))")
    assert "$" not in statements.key_list(NOTES.key, [("${env:HOME}",)])
    assert statements.key_list(LINES.key, [(1, "a"), (2, None)]) == (
        "(`order` <=> 1 AND `line` <=> 'a') OR (`order` <=> 2 AND `line` <=> NULL)"
    )


def test_a_first_commit_is_made_once(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "p.parquet", tmp_path / "q.parquet"
    pq.write_table(pa.table({"id": [1, 2], "note": ["a", None], "rank": [1, 2]}), ours)
    theirs.write_bytes(b"not in this commit")
    write_first_commit(tmp_path, [ours], NOTES, "{}", COPY, {"delta.enableDeletionVectors": "true"})
    [commit] = (tmp_path / "_delta_log").iterdir()
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    assert [next(iter(action)) for action in actions] == [
        "commitInfo",
        "protocol",
        "metaData",
        "add",
    ]
    assert Mark.loads(actions[0]["commitInfo"]["userMetadata"]) == COPY
    assert actions[1]["protocol"]["readerFeatures"] == ["deletionVectors"]
    assert json.loads(actions[3]["add"]["stats"])["maxValues"] == {"id": 2, "note": "a", "rank": 2}
    with pytest.raises(FileExistsError):
        write_first_commit(tmp_path, [ours], NOTES, "{}", BATCH, {})
    assert commit.read_text().count("commitInfo") == 1


@pytest.mark.parametrize(
    "error",
    [
        Py4JNetworkError("Error while sending or receiving"),
        Py4JError("An error occurred while calling o77.save"),
        ConnectionRefusedError(111, "Connection refused"),
    ],
)
def test_a_jvm_that_is_gone_is_no_fault_of_the_table(error: Exception) -> None:
    # As a failure of the destination each table would become errored, one after the other.
    found = explain(error, NOTES.name, "/lake/shop/notes")
    assert found.kind is ErrorKind.INTERNAL
    assert "Spark's driver ended" in found.message
    assert found.hint is not None
    assert "spark.driver.memory" in found.hint


def test_a_log_is_read_from_its_newest_commit_on(tmp_path: Path) -> None:
    log = tmp_path / "_delta_log"
    log.mkdir()

    def commit(version: int, *actions: dict[str, object]) -> None:
        lines = [json.dumps(action, separators=(",", ":")) + "\n" for action in actions]
        (log / f"{version:020}.json").write_text("".join(lines))

    add = {"add": {"path": "commitInfo"}}
    commit(8, {"commitInfo": {"userMetadata": COPY.dumps()}}, add)
    commit(9, add, {"commitInfo": {"userMetadata": BATCH.dumps()}})
    commit(10, {"commitInfo": {"operation": "OPTIMIZE", "userMetadata": COPY.carry().dumps()}})
    commit(11, {"commitInfo": {"operation": "VACUUM START"}})
    commit(12, add)
    for other in ("00000000000000000099.00000000000000000100.compacted.json", "_last_checkpoint"):
        (log / other).write_text('{"commitInfo": {"userMetadata": "no commit"}}')
    assert list(user_metadata(tmp_path)) == [
        None,
        None,
        COPY.carry().dumps(),
        BATCH.dumps(),
        COPY.dumps(),
    ]
    assert newest(user_metadata(tmp_path)) == BATCH


def test_files_are_moved_only_within_a_filesystem(tmp_path: Path) -> None:
    file = tmp_path / "rows.parquet"
    file.write_bytes(b"")
    assert location.can_move([str(file)], tmp_path / "lake" / "public" / "t")
    assert not location.can_move(["/proc/version"], tmp_path / "lake" / "public" / "t")
    assert not location.can_move([str(tmp_path / "gone")], tmp_path / "lake")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("java.io.IOException: Permission denied", ErrorKind.DESTINATION_REJECTED),
        ("java.io.IOException: No space left on device", ErrorKind.DESTINATION_CONNECTION),
        ("java.net.UnknownHostException: bucket", ErrorKind.DESTINATION_CONNECTION),
        ("NoAuthWithAWSException: no provider", ErrorKind.DESTINATION_AUTHENTICATION),
        (
            "[DELTA_CONCURRENT_APPEND] io.delta.exceptions.ConcurrentAppendException",
            ErrorKind.DESTINATION_TIMEOUT,
        ),
        ("io.delta.exceptions.ConcurrentTransactionException: x", ErrorKind.DESTINATION_REJECTED),
        ("ExecutorLostFailure (executor 3 exited)", ErrorKind.DESTINATION_TIMEOUT),
        ("org.apache.spark.shuffle.FetchFailedException", ErrorKind.DESTINATION_TIMEOUT),
        ("[CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND] Checkpoint block", ErrorKind.DESTINATION_TIMEOUT),
        ("java.lang.OutOfMemoryError: Java heap space", ErrorKind.DESTINATION_TIMEOUT),
        ("Job 3 cancelled because SparkContext was shut down", ErrorKind.INTERNAL),
        ("No active or default Spark session found", ErrorKind.INTERNAL),
        ("something else", ErrorKind.DESTINATION_REJECTED),
    ],
)
def test_trouble_is_told_by_its_kind_with_a_hint(text: str, kind: ErrorKind) -> None:
    told = explain(RuntimeError(text), TableName("public", "t"), "/lake/public/t", Lsn(7))
    assert (told.kind, told.table, told.position) == (kind, TableName("public", "t"), Lsn(7))
    assert "/lake/public/t" in told.message
    assert told.hint


def test_a_fence_is_not_a_conflict() -> None:
    fenced = RuntimeError("io.delta.exceptions.ConcurrentTransactionException: ...")
    conflict = RuntimeError("io.delta.exceptions.ConcurrentDeleteReadException: ...")
    assert is_fenced(fenced)
    assert not is_conflict(fenced)
    assert is_conflict(conflict)
    assert not is_conflict(ValueError("java.util.ConcurrentModification"))


def test_java_s_preamble_is_left_out_of_an_error() -> None:
    text = "An error occurred while calling o1.save.\n: java.lang.Broken: pipe\n\tat x"
    told = explain(RuntimeError(text), TableName("public", "t"), "/p")
    assert told.message == "Delta refused to write /p: java.lang.Broken: pipe"
    text = "An error occurred while calling o1.save.\n: a.B: [DELTA_X_Y] Mend this.\n\nCaused by"
    told = explain(RuntimeError(text), TableName("public", "t"), "/p")
    assert told.message == "Delta refused to write /p: [DELTA_X_Y] Mend this."


def test_litter_is_known_by_its_note(tmp_path: Path) -> None:
    directory, file = tmp_path / "t", tmp_path / "rows.parquet"
    file.write_bytes(b"")
    rows = TableRows("copy-1", NOTES, (str(file),), 0, cast(Any, None))
    moved = location.move_in(rows, directory, "shop")
    assert moved == list(directory.glob("*.parquet"))
    with pytest.raises(PenstockError, match="where pipeline shop puts a table"):
        location.clear_litter(directory, NOTES.name, "bank")
    with pytest.raises(PenstockError, match="where pipeline shop puts a table"):
        location.move_in(rows, directory, "bank")
    location.clear_litter(directory, NOTES.name, "shop")
    assert not directory.exists()
    directory.mkdir()
    (directory / "theirs").write_bytes(b"")
    with pytest.raises(PenstockError, match="files that Penstock did not put there"):
        location.clear_litter(directory, NOTES.name, "shop")


def test_two_tables_do_not_share_a_place() -> None:
    places, other = Places(), replace(NOTES, id=TableId(6), name=TableName("us", "notes"))
    places.take(NOTES, "/lake/notes")
    with pytest.raises(PenstockError, match=r"/lake/notes is where public\.notes goes, too"):
        places.take(other, "/lake/notes")
    places.take(replace(NOTES, id=TableId(7)), "/lake/notes")  # dropped, and made again
    places.take(replace(NOTES, id=TableId(7), name=TableName("public", "old")), "/lake/old")
    places.take(other, "/lake/notes")
    places.leave("/lake/notes")
    places.take(NOTES, "/lake/notes")


def test_what_a_write_committed_is_synced_with_all_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[str] = set()
    monkeypatch.setattr(os, "fsync", lambda fd: synced.add(Path(f"/proc/self/fd/{fd}").readlink()))
    log, adds = tmp_path / "_delta_log", []
    vector = {"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^"}
    (tmp_path / "ab").mkdir()
    for name, more in [("one two.parquet", {}), ("v.parquet", {"deletionVector": vector})]:
        (tmp_path / name).touch()
        adds.append({"add": {"path": quote(name), **more}})
    named = tmp_path / "ab" / "deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
    named.touch()
    log.mkdir()
    durability = Durability()
    with durability.writing(str(tmp_path)):
        text = "".join(json.dumps(add) + "\n" for add in adds)
        (log / f"{0:020}.json").write_text('{"commitInfo":{}}\n' + text)
    files = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert len(files) == 4
    assert synced == files | {tmp_path, log, tmp_path / "ab"}
    synced.clear()
    with durability.writing(str(tmp_path)):
        pass
    assert not synced
    with Durability().writing(str(tmp_path)):  # whoever wrote may have died before
        pass
    assert synced >= files


def test_commits_are_synced_also_where_delta_has_removed_the_ones_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[Path] = set()
    monkeypatch.setattr("penstock.destinations.delta.durability.sync", synced.add)
    log = tmp_path / "_delta_log"
    log.mkdir()
    commits = [log / f"{version:020}.json" for version in (60, 61, 62)]
    for commit in commits[:2]:
        commit.write_text('{"commitInfo":{}}')
    with Durability().writing(str(tmp_path)):
        commits[2].write_text('{"commitInfo":{}}')
    assert synced == {*commits, log}


def test_a_place_that_another_table_is_at_is_not_taken() -> None:
    there = replace(COPY, table_name="us.notes")
    mine = Mark("shop", NOTES.id, "copy-2", table_name=str(NOTES.name))
    there = replace(there, table_id=TableId(6))
    with pytest.raises(PenstockError, match=r"/p is where us\.notes goes, too"):
        require_own(NOTES, "/p", there, mine, lambda _: "copy-1")
    require_own(NOTES, "/p", there, mine, lambda _: None)  # it has left
    require_own(NOTES, "/p", there, mine, lambda _: "copy-9")  # it is elsewhere
    require_own(NOTES, "/p", replace(there, table_name="public.notes"), mine, lambda _: "copy-1")
    require_own(NOTES, "/p", replace(there, table_name=None), mine, lambda _: "copy-1")


def test_a_mirror_wants_rows_again_that_no_change_told_of_and_a_history_does_not(
    tmp_path: Path,
) -> None:
    what = "partition public.notes_1 was detached or dropped"
    mirror, history = DeltaDestination(tmp_path), DeltaDestination(tmp_path, mode="history")
    assert mirror.rows_changed(NOTES, what) is SchemaChangeAction.RESYNC
    assert history.rows_changed(NOTES, what) is SchemaChangeAction.CONTINUE


def test_where_in_a_history_a_copy_goes() -> None:
    def place(found: Mark | None) -> CopyPlace:
        rows = TableRows("c2", NOTES, (), 0, None, Lsn(50))  # type: ignore[arg-type]
        return copy_place("/lake/notes", rows, found, Mark("p", NOTES.id, "c2"))

    copied = Mark("p", NOTES.id, "c1")
    assert place(None).behind is None
    assert place(copied).behind is None, "it takes the place of a copy that nothing followed"
    applied = replace(copied, position=Lsn(40))
    behind = place(applied)
    assert (behind.behind, behind.instead) == (Lsn(40), None)
    assert (behind.mark.copied_behind, behind.mark.went_on) == (Lsn(40), True)
    assert Mark.loads(behind.mark.dumps()) == behind.mark
    again = place(behind.mark)
    assert (again.behind, again.instead) == (Lsn(40), Lsn(40))
    assert (again.mark.copied_behind, again.mark.went_on) == (Lsn(40), True)
    other = place(replace(applied, table_id=TableId(7)))
    assert other.behind == Lsn(40)
    assert not other.mark.went_on, "what follows has nothing to do with that table's changes"
    with pytest.raises(PenstockError, match="it was restored, or is another one") as refused:
        place(replace(applied, position=Lsn(60)))
    assert "begins another history" in str(refused.value.hint)
