"""``simstream serve``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .algorithms import DEFAULT_ALGORITHM
from .options import FILE, debug_option, params_option, quiet_option, service_folder_option


@click.command(short_help="Search over HTTP that learns from feedback.")
@click.argument("items", type=FILE, required=False)
@service_folder_option
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
    default=1.0,
    show_default=True,
    help="Questions: a triplet with margin p is asked about with probability delta/(delta+|p|).",
)
@click.option(
    "--random-share",
    type=click.FloatRange(0, 1),
    default=0.15,
    show_default=True,
    help="Share of random questions, which measure the accuracy.",
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
    help="Events between two snapshots.",
)
@click.option(
    "--demo", is_flag=True, help="Bundled digits with pictures, in a folder of their own."
)
@click.option(
    "--simulate",
    is_flag=True,
    help="With --demo: answer questions by the digits' labels, a few each second.",
)
@quiet_option
@debug_option
def serve(
    items: Path | None,
    folder: Path,
    host: str,
    port: int,
    algorithm: str | None,
    params: tuple[tuple[str, Any], ...],
    block: int | None,
    delta: float,
    random_share: float,
    rate: float,
    snapshot_every: int,
    demo: bool,
    simulate: bool,
    quiet: bool,
) -> None:
    """Serve ITEMS over HTTP: search, feedback, questions, and a page to answer them.

    What happens is kept in a log before it is acknowledged; the model is a fold over the log. ITEMS (.npy,
    .npz, .svm, .jsonl, .csv) are added when the service starts for the first time.

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
    if demo and items is not None:
        raise click.UsageError("--demo: expected no ITEMS with it")
    from ..asking import Asking
    from ..serve.settings import Limits

    _run(
        items,
        folder / "demo" if demo else folder,
        (host, port),
        (algorithm, dict(params), block),
        {
            "asking": Asking(delta=delta, random_share=random_share),
            "limits": Limits(rate=rate),
            "snapshot_every": snapshot_every,
        },
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
    options: dict[str, Any],
    *,
    demo: bool,
    simulate: bool,
) -> None:
    import contextlib

    import scipy.sparse as sp

    from ..formats import read_items
    from ..serve import demo as digits
    from ..serve.auth import KeyRing
    from ..serve.importing import import_file
    from ..serve.runner import check_host, run
    from ..serve.service import Service
    from ..serve.settings import Settings
    from .output import logger

    host, port = address
    check_host(host, KeyRing(folder / "keys.json"))
    data = None if path is None else read_items(path, dtype="float32")
    n_features = data.items.shape[1] if data is not None and sp.issparse(data.items) else None
    chosen, n_features = _learning(folder, learning, n_features)
    service = Service(Settings(folder, learning=chosen, n_features=n_features, **options))
    with contextlib.ExitStack() as stack:
        stack.callback(service.close)
        if path is not None:
            added = import_file(service, path, data)
            logger.info("%d items added from %s", added, path)
        if demo:
            digits.add_digits(service)

        def on_ready(url: str) -> None:
            position, seconds = service.version.position, service.engine.restart_seconds
            logger.info("ready at %s (log position %d, %.2f s)", url, position, seconds)
            if simulate:
                digits.start_annotator(service)

        run(service, host=host, port=port, on_ready=on_ready)
    logger.info("stopped at log position %d", service.version.position)


def _learning(
    folder: Path,
    given: tuple[str | None, dict[str, Any], int | None],
    n_features: int | None,
) -> tuple[Any, int | None]:
    """How to learn: as the log was begun, as far as nothing else is said."""
    from ..serve.log import Log
    from ..serve.settings import Learning
    from .algorithms import ALGORITHMS, check_names

    kept: dict[str, Any] | None = None
    if (folder / "log.sqlite").exists():
        log = Log(folder / "log.sqlite")
        kept = log.setting("service")
        log.close()
    before = Learning(**kept["learning"]) if kept else Learning()
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
    return learning, n_features
