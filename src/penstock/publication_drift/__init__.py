"""Changes to a table's rows that the stream does not carry, and what is done about them.

The stream carries inserts, updates, deletes and truncates of published tables. It does not carry
what happens to rows by the way in which they belong to a published table: a partition that is
attached brings rows, another row filter lets other rows through, and no change says so. This
package finds such drift and has the table copied again where only a copy helps.

`terms` are the conditions on which a table is published: the catalog rows, row filter, options,
partitions and their files that decide which rows belong. `catalog` reads them from the source.
The terms of a copy are stored next to the journal, and `drift` compares them with each later look
at the catalog (every two seconds, and after a restart). `sent_partitions` records which partitions
the stream has sent under the name of another table, for partitions that come and go between two
looks.

What happened, how it is detected, and what is done. *Copy* means that the destination is asked
(`rows_changed`): a mirror wants another copy, a history continues.

========================================  =======================================  ===============
what happened                             detected by                              done
========================================  =======================================  ===============
`publish` was changed                     `Terms.sends` differs                    copy
row filter was changed                    `Terms.row_filter` differs               copy
table left the publication and came back  no catalog entry in common (`entries`)   copy
options were set, and set back            `options` differs, `shown` does not      copy
table was a partition for a moment        every column was touched (`columns`)     copy
partition was detached or dropped         it is gone, or its `links` differ        copy
partition was attached                    new, `attached`, and its file has rows   copy
partition was created as one              new, not `attached`                      continue
partition was truncated by itself         new file, no TRUNCATE of that            copy
                                          transaction in the journal
whole table was truncated                 new file, and the journal has the        continue
                                          TRUNCATE
VACUUM FULL, CLUSTER                      new file, but a row is older than the    continue
                                          last look (`kept_rows`)
rows rewritten by ALTER TABLE, or SET     new file and new TOAST table; looked     copy
UNLOGGED, without event triggers          for only without the triggers
partition came and went between looks     the journal has its Relation messages    copy
                                          (`SentPartitions.under`)
changes were sent under another name      `SentPartitions.elsewhere`               copy
enum label renamed, composite attribute   `Terms.printed` differs                  copy
added or dropped
source was promoted before the copy's     `Terms.timeline` differs                 copy, always
barrier was passed
columns differ from the destination's     `TableSchema.same_columns`               schema change
========================================  =======================================  ===============
"""
