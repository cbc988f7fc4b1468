"""A service that searches with a similarity while learning it from feedback.

A judgement goes one way: `access` (who may ask) -> `routes`, with the shapes of `schemas` -> `writer`
(checked in order, then durable as `events` of the `log`) -> `engine` (learnt by `state`, published as a
version, saved by `snapshots`). `service` holds these parts together, `app` is the HTTP application, and
`collections` several of them in one process.
Everything learnt is computed from the log alone.
"""
