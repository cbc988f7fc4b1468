"""A service that searches with a similarity while learning it from feedback.

A judgement goes one way: `access` (who may ask) -> `routes`, with the shapes of `schemas` -> `writer`
(checked in order, then durable as `events` of the `log`, in SQLite or PostgreSQL) -> `engine` (learnt by
`state`, published as a version, saved by `snapshots`). `service` holds these parts together, `app` is the
HTTP application, `collections` several of them in one process. Everything learnt is computed from the log
alone; `saved_items` are a copy of a part of it. With `workers`, each process is a `reader`: it
answers searches and passes on the rest (`forwarding`).
"""
