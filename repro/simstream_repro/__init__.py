"""Published tables and figures, run again: ``simstream repro`` on the command line.

A *paper* (`plan`, read from ``papers/*.toml``) has studies; a study has *cells*, each run by a *protocol*
(`protocols`) in a process of its own (`runner`), and kept as a *record* (`records`). From the records come
verdicts on printed numbers (`verdicts`), findings on claims (`claims`), `figures` and pages (`report`).
`reference` has the textbook NumPy version of every method.
"""
