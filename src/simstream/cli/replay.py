"""``simstream replay``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .options import debug_option, json_option, params_option, service_folder_option


@click.command(short_help="Rebuild the model of a service from its log, and compare.")
@service_folder_option
@click.option("--algorithm", "-a", help="Another learner (default: that of the log).")
@params_option
@click.option("--block", type=click.IntRange(min=1), help="Learn in blocks of so many events.")
@click.option("--until", type=click.IntRange(min=0), help="Position to stop at (default: the end).")
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the rebuilt model to this file.",
)
@click.option(
    "--adopt",
    is_flag=True,
    help="From now on the service learns this way (it must not run meanwhile).",
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
    """Fold the log again from its beginning, perhaps with another learner or other parameters.

    Both models meet the same comparisons in the same order, each judged before it is learnt from.

    \b
    simstream replay                              is the model what the log says?
    simstream replay -a sors -p lam=1e-5          what if?
    simstream replay -a sors -p lam=1e-5 --adopt  and from now on
    """
    from ..serve.log import damage_told, lock_folder
    from ..serve.replaying import adopt_learning, compare
    from ..serve.settings import Learning
    from .output import configure_logging, echo_json, echo_table

    configure_logging(quiet=False)
    if not (folder / "log.sqlite").exists():
        raise click.UsageError(f"--data: expected the folder of a service, got {folder}")

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
    # What was compared is the kept model with the log folded in the kept way, whatever else was rebuilt.
    report["kept_model_matches_log"] = report["identical"]
    if not is_same:
        report["identical"] = None
    if output is not None:
        if learner is None:
            raise click.UsageError("--output: there is nothing to learn from in the log")
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
