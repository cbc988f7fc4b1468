"""``simstream info``."""

from __future__ import annotations

from pathlib import Path

import click

from .options import FILE, debug_option, json_option


@click.command(short_help="Say what is in a model file.")
@click.argument("model", type=FILE)
@json_option
@debug_option
def info(model: Path, as_json: bool) -> None:
    """Say what is in the file MODEL: class, parameters, counts, shape, position in its input."""
    from .inputs import open_model
    from .output import echo_fields, echo_json
    from .summary import summarise, summary_fields

    opened = open_model(model)
    facts = summarise(model, opened.learner, opened.record) | {
        "saved_as": type(opened.saved).__name__,
        "simstream_version": opened.header["simstream_version"],
        "format_version": opened.header["format_version"],
    }
    if as_json:
        echo_json(facts)
        return
    fields = summary_fields(facts, opened.record)
    if facts["saved_as"] != facts["class"]:
        fields["saved as"] = f"{facts['saved_as']} around it"
    fields["written by"] = (
        f"simstream {facts['simstream_version']} (file format {facts['format_version']})"
    )
    echo_fields(fields)
