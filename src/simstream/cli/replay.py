"""``simstream replay``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .options import COUNT, NATURAL, debug_option, json_option, params_option, service_folder_option
from .output import configure_logging, echo_json, echo_table


@click.command(short_help="Rebuild a service's model from its log and compare.")
@service_folder_option
@click.option("--algorithm", "-a", help="Use another learner (default: that of the log).")
@params_option
@click.option("--block", type=COUNT, help="Learn in blocks of this many events.")
@click.option("--until", type=NATURAL, help="Log position to stop at (default: the end).")
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the rebuilt model to this file.",
)
@click.option(
    "--adopt",
    is_flag=True,
    help="Make the service learn this way from now on (it must not be running).",
)
@json_option
@debug_option
def replay(
    folder: Path,
    algorithm: str | None,
    params: tuple[tuple[str, Any], ...],
    block: int | None,
    until: int | None,
    output: Path | None,
    adopt: bool,
    as_json: bool,
) -> None:
    """Learn from the log again from its beginning, optionally with another learner or other parameters.

    Both models see the same comparisons in the same order; each judges a comparison before learning from it.

    \b
    simstream replay                              does the model match the log?
    simstream replay -a sors -p lam=1e-5          what would another learner do?
    simstream replay -a sors -p lam=1e-5 --adopt  use it from now on
    """
    from ..serve.log import damage_told, lock_folder
    from ..serve.snapshots import adopt_learning, compare
    from ..serve.state import Learning

    configure_logging(quiet=False)
    if not (folder / "log.sqlite").exists():
        raise click.UsageError(f"--data: expected a service's folder, got {folder}")

    is_same = True

    def chosen(kept: Learning) -> Learning:
        nonlocal is_same
        same = algorithm is None and not params
        wanted = Learning(
            (algorithm or kept.algorithm).lower(),
            kept.params if same else dict(params),
            kept.block if block is None else block,
        )
        is_same = wanted == kept
        return wanted

    if adopt:
        with lock_folder(folder):  # raises if a service runs, before all the work
            pass
    try:
        with damage_told(folder / "log.sqlite"):
            report, learner = compare(folder, chosen, until)
    except KeyError as error:
        raise click.BadParameter(f"unknown algorithm {error}", param_hint="--algorithm") from None
    # The kept model is compared with the log learnt in the kept way, whatever else was rebuilt.
    report["kept_model_matches_log"] = report["identical"]
    if not is_same:
        report["identical"] = None
    if output is not None:
        if learner is None:
            raise click.UsageError("--output: the log holds nothing to learn from")
        learner.save(output, extra={"position": report["position"]})
    if adopt:
        adopt_learning(folder, chosen)
    if as_json:
        echo_json(report)
        return
    columns = list(next(iter(report["models"].values())))
    rows = [
        [name, *("" if values[c] is None else f"{values[c]:.6g}" for c in columns)]
        for name, values in report["models"].items()
    ]
    echo_table(["model", *columns], rows)
    agrees = report["kept_model_matches_log"]
    if agrees is not None:
        what, of = ("rebuilt", "the kept one") if is_same else ("kept", "what the log says")
        click.echo(
            f"the {what} model is {of}, bit for bit"
            if agrees
            else f"the {what} model DIFFERS from {of}"
        )
