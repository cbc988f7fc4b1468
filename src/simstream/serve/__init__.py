"""A service that searches with a similarity and learns it from feedback at the same time.

`events` and `feedback` are pure; `log` keeps events, `fold` turns them into a model, `snapshots` saves it,
`engine` publishes it; `service` is all of that together and `app` its HTTP interface.
"""
