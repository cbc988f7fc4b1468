"""``simstream serve``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from .algorithms import DEFAULT_ALGORITHM
from .options import FILE, debug_option, params_option, quiet_option, service_folder_option


@click.command(short_help="Search over HTTP that learns from feedback.")
@click.argument("items", type=FILE, required=False)
@service_folder_option
@click.option(
    "--add",
    "may_add",
    is_flag=True,
    help="Add ITEMS of new ids to a folder that has others; known ids are left as they are.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Other machines need keys.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True)
@click.option(
    "--algorithm",
    "-a",
    help=f"What learns (default: {DEFAULT_ALGORITHM}); omtrsl learns one similarity per task.",
)
@params_option
@click.option(
    "--block",
    type=click.IntRange(min=1),
    help="Learn in blocks of so many events (default: 1, each at once).",
)
@click.option(
    "--delta",
    type=click.FloatRange(min=0, min_open=True),
    help="Questions: a triplet with margin p is asked about with probability delta/(delta+|p|) "
    "(default: 0.1).",
)
@click.option(
    "--near",
    type=click.IntRange(1, 1000),
    help="Questions: one candidate is the nearest of so many, so that there is more often an answer "
    "(default: 1, any item; 24 in the demo).",
)
@click.option(
    "--random-share",
    type=click.FloatRange(0, 1),
    help="Share of questions about any three items, which measure the accuracy (default: 0.15).",
)
@click.option(
    "--rate",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    help="Requests per second of one key or address; 0 is no limit.",
)
@click.option(
    "--snapshot-every",
    type=click.IntRange(min=1),
    default=2000,
    show_default=True,
    help="Events between two snapshots; fewer where learning is slow.",
)
@click.option(
    "--demo", is_flag=True, help="Bundled digits in eight colours, in the subfolder demo of --data."
)
@click.option(
    "--simulate",
    is_flag=True,
    help="With --demo: somebody simulated, who looks at shapes only, answers ten questions a second.",
)
@quiet_option
@debug_option
def serve(
    items: Path | None,
    folder: Path,
    may_add: bool,
    host: str,
    port: int,
    algorithm: str | None,
    params: tuple[tuple[str, Any], ...],
    block: int | None,
    delta: float | None,
    near: int | None,
    random_share: float | None,
    rate: float,
    snapshot_every: int,
    demo: bool,
    simulate: bool,
    quiet: bool,
) -> None:
    """Serve ITEMS over HTTP: search, feedback, questions, and a page to answer them.

    What happens is kept in a log before it is acknowledged; the model is a fold over the log. ITEMS (.npy,
    .npz, .svm, .jsonl, .csv) are added when the service starts for the first time. A folder that has other
    items is refused, unless --add is given.

    \b
    simstream serve items.npz
    simstream serve --demo --simulate
    simstream keys add page --scope read --scope write && simstream serve --host 0.0.0.0
    """
    from .output import configure_logging

    configure_logging(quiet)
    _check_installed()
    if simulate and not demo:
        raise click.UsageError("--simulate: expected --demo with it")
    if may_add and items is None:
        raise click.UsageError("--add: expected ITEMS with it")
    if demo and items is not None:
        raise click.UsageError("--demo: expected no ITEMS with it")
    from ..serve.settings import Limits

    asking = {"delta": delta, "near": near, "random_share": random_share}
    _run(
        items,
        folder / "demo" if demo else folder,
        (host, port),
        (algorithm, dict(params), block),
        {name: value for name, value in asking.items() if value is not None},
        {
            "limits": Limits(rate=rate),
            "snapshot_every": snapshot_every,
        },
        may_add=may_add,
        demo=demo,
        simulate=simulate,
    )


def _check_installed() -> None:
    from importlib.util import find_spec

    missing = [name for name in ("fastapi", "uvicorn") if find_spec(name) is None]
    if missing:
        raise click.UsageError(
            f"{' and '.join(missing)} not installed: pip install 'simstream[serve]'"
        )


def _run(
    path: Path | None,
    folder: Path,
    address: tuple[str, int],
    learning: tuple[str | None, dict[str, Any], int | None],
    asking: dict[str, Any],
    options: dict[str, Any],
    *,
    may_add: bool,
    demo: bool,
    simulate: bool,
) -> None:
    import contextlib
    import gc
    from dataclasses import replace

    from ..asking import Asking
    from ..serve.access import check_host
    from ..serve.app import check_port, run
    from ..serve.keys import KeyRing
    from ..serve.log import damage_told
    from ..serve.service import Service
    from ..serve.settings import Learning, Settings
    from .output import logger

    host, port = address
    check_host(host, KeyRing(folder / "keys.json"))
    check_port(host, port)
    data, n_features = (None, None) if path is None else _read(path)
    default_learning, default_asking, measure = Learning(), Asking(), None
    if demo:
        from ..serve import demo as digits

        default_learning, default_asking = digits.LEARNING, digits.ASKING
        measure = digits.Measure()
    chosen, n_features = _learning(folder, learning, n_features, default_learning)
    options["asking"] = replace(default_asking, **asking)
    settings = Settings(folder, learning=chosen, n_features=n_features, measure=measure, **options)
    with damage_told(settings.log_path), contextlib.ExitStack() as stack:
        # What is made from here until it is ready stays: looking for garbage in it would be in vain, now
        # and later, when a request would have to wait for it.
        gc.disable()
        stack.callback(gc.enable)
        service = Service(settings)
        stack.callback(service.close)
        if path is not None:
            from ..serve.import_export import import_file

            came = import_file(service, path, data, may_add=may_add)
            logger.info("%d items added from %s", came.added, path)
            if came.present:
                text = "%d were there and are left as they are (%d have another vector in the file)"
                logger.info(text, came.present, came.different)
            data = None  # the service has its own
        if demo:
            digits.add_digits(service)

        def on_ready(url: str) -> None:
            gc.freeze()
            gc.enable()
            position, seconds = service.version.position, service.engine.restart_seconds
            logger.info("ready at %s (log position %d, %.2f s)", url, position, seconds)
            if measure is not None:
                stack.callback(_start_demo(service, measure, simulate=simulate))

        run(service, host=host, port=port, on_ready=on_ready)
    logger.info("stopped at log position %d", service.version.position)


def _read(path: Path) -> tuple[Any, int | None]:
    """Items of a file, and how many features they have where they are sparse."""
    import scipy.sparse as sp

    from ..data import read_items

    data = read_items(path, dtype="float32")
    return data, data.items.shape[1] if sp.issparse(data.items) else None


def _start_demo(service: Any, measure: Any, *, simulate: bool) -> Callable[[], None]:
    """Say what there is to see, and let somebody simulated answer if that is wanted; return how to stop."""
    from ..serve import demo
    from .output import logger

    if service.version.tally.questions:
        logger.info("going on from %s (remove it to begin anew)", service.settings.folder)
    logger.info("%s", demo.ABOUT)
    logger.info("%s", demo.progress(service, measure))
    if simulate:
        return demo.start_annotator(service, measure, logger.info)
    logger.info("Answer some questions, by the shape, on the page; or start with --simulate")
    return lambda: None


def _learning(
    folder: Path,
    given: tuple[str | None, dict[str, Any], int | None],
    n_features: int | None,
    default: Any,
) -> tuple[Any, int | None]:
    """How to learn: as the log was begun, as far as nothing else is said."""
    import contextlib

    from ..serve.log import Log, damage_told
    from ..serve.settings import Learning
    from .algorithms import ALGORITHMS, check_names

    kept: dict[str, Any] | None = None
    if (folder / "log.sqlite").exists():
        log = Log(folder / "log.sqlite")
        with damage_told(log.path), contextlib.closing(log):
            kept = log.setting("service")
    before = Learning(**kept["learning"]) if kept else default
    algorithm, params, block = given
    name = (algorithm or before.algorithm).lower()
    if name not in ALGORITHMS:
        raise click.BadParameter(
            f"expected one of {', '.join(ALGORITHMS)}, got {algorithm}", param_hint="--algorithm"
        )
    check_names(name, params)
    learning = Learning(
        name,
        params if params or algorithm else before.params,
        before.block if block is None else block,
    )
    try:
        learning.new_learner()
    except (TypeError, ValueError) as error:
        raise click.BadParameter(str(error), param_hint="--algorithm") from error
    if kept is not None and n_features is None:
        n_features = kept["n_features"]
    elif kept is not None and n_features != kept["n_features"]:
        expected = (
            "dense vectors"
            if kept["n_features"] is None
            else f"sparse vectors of {kept['n_features']} features"
        )
        raise ValueError(
            f"ITEMS: expected {expected}, as in {folder}, got sparse vectors of {n_features}; "
            "choose another folder (--data)"
        )
    return learning, n_features
