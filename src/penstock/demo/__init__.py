"""The demo: a shop of its own, replicated live, and compared row by row at the end."""
