"""The service: ``simstream serve``, and ``replay`` of its log."""

from __future__ import annotations

import gc
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from ..extras import MissingExtraError
from .collecting import read_collections, refuse_given
from .learners import ALGORITHMS, DEFAULT_ALGORITHM, check_names, names_of
from .options import (
    COUNT,
    FILE,
    NATURAL,
    PathType,
    Whole,
    json_option,
    log_option,
    n_features_option,
    params_option,
    quiet_option,
    refuse_options,
    service_folder_option,
)
from .output import configure_logging, echo_json, echo_table, logger, plural


class Propensity(click.ParamType):
    """The power of the probability that a result is looked at: a number, none, or swaps."""

    name = "power"

    def convert(self, value: Any, param: Any, ctx: Any) -> float | str:
        """Parse the option's text."""
        if value == "swaps":
            return "swaps"
        power = -1.0
        with suppress(TypeError, ValueError):
            power = 0.0 if value == "none" else float(value)
        if not 0 <= power < float("inf"):
            self.fail(f"expected none, swaps or a power >= 0, got {value!r}", param, ctx)
        return power


def publishing_options(command: Any) -> Any:
    """What a service publishes: options of serve and replay."""
    options = (
        click.option(
            "--promote",
            type=click.Choice(["safe", "always"]),
            help="Serve what was learnt only as far as events that were not learnt from yet say that it is "
            "better, or always (default: safe; always for --demo digits and folders of earlier versions).",
        ),
        click.option(
            "--half-life",
            type=click.FloatRange(min=0, min_open=True),
            help="With safe: measured events after which an event counts half (default: 500).",
        ),
        click.option(
            "--propensity",
            type=Propensity(),
            metavar="none|POWER|swaps",
            help="With safe: the result at rank r is looked at with probability (1/r)^POWER, and clicks are "
            "weighed by its inverse, at most 10; swaps estimates POWER (default: none).",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def _checked_follow(context: Any, parameter: Any, value: str | None) -> bool | str:
    """Whether to follow another service, or the address of that."""
    if not value:
        return value is not None
    if not value.startswith(("http://", "https://")):
        raise click.BadParameter(
            f"expected http(s)://HOST:PORT, or nothing to follow the log of --data or --log, got {value}"
        )
    return value


@click.command(short_help="Search over HTTP that learns from feedback.")
@click.argument("items", type=FILE, required=False)
@n_features_option
@service_folder_option
@log_option
@click.option(
    "--add",
    "may_add",
    is_flag=True,
    help="Add ITEMS with new ids to a folder that already has items; known ids stay unchanged.",
)
@click.option(
    "--follow",
    is_flag=False,
    flag_value="",
    metavar="[URL]",
    callback=_checked_follow,
    help="Read what another service writes to the log of --data or to --log, and answer searches only; with "
    "http(s)://HOST:PORT of a service, copy its log to --data. Give its key in SIMSTREAM_KEY (scope follow).",
)
@click.option(
    "--workers",
    type=Whole(0, 256),
    default=0,
    show_default=True,
    metavar="N",
    help="Answer searches by this many more processes behind the same port; 0: by this one.",
)
@click.option(
    "--collections",
    type=FILE,
    metavar="FILE.toml",
    help="Serve several collections under /c/NAME/: a table for each, with its own data, items and options.",
)
@click.option(
    "--index",
    default="exact",
    show_default=True,
    help="What searches: exact; usearch, an approximate index in this process; or a database that holds the "
    "items, qdrant://HOST:PORT/COLLECTION or postgresql://...?table=NAME (pgvector).",
)
@click.option(
    "--move-index",
    is_flag=True,
    help="Items that were in one database are in that of --index now, with the same ids.",
)
@click.option(
    "--candidates",
    type=COUNT,
    help="Items that an approximate index examines for a search: more finds more and takes longer "
    "(default: 512).",
)
@click.option(
    "--recall-share",
    type=click.FloatRange(0, 1),
    metavar="SHARE",
    help="Share of searches of an approximate index that are compared with the exact answer, for "
    "simstream_recall in /metrics (default: 0.01).",
)
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Any other host requires keys."
)
@click.option("--port", type=Whole(0, 65535), default=8000, show_default=True)
@click.option(
    "--algorithm",
    "-a",
    help=f"The learner (default: {DEFAULT_ALGORITHM}); omtrsl learns one similarity per task.",
)
@params_option
@click.option(
    "--block",
    type=COUNT,
    help="Learn in blocks of this many events (default: 1, each event at once).",
)
@publishing_options
@click.option(
    "--randomise",
    type=click.FloatRange(0, 1),
    default=0.0,
    show_default=True,
    metavar="SHARE",
    help="Show two neighbouring results of this share of searches in random order, for --propensity swaps.",
)
@click.option(
    "--delta",
    type=click.FloatRange(min=0, min_open=True),
    help="Questions: a triplet with margin p is asked with probability delta / (delta + |p|) "
    "(default: 0.1).",
)
@click.option(
    "--near",
    type=Whole(1, 1000),
    help="Questions: one candidate is the nearest of this many random items, so that more questions have a "
    "clear answer (default: 1; 24 in the demo).",
)
@click.option(
    "--random-share",
    type=click.FloatRange(0, 1),
    help="Share of questions about random triplets, which measure the accuracy (default: 0.15).",
)
@click.option(
    "--rate",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    help="Requests per second allowed per key or address; 0 means no limit.",
)
@click.option(
    "--proxy",
    metavar="ADDRESS",
    help="Address of a reverse proxy that may name the callers it speaks for (X-Forwarded-For).",
)
@click.option(
    "--snapshot-every",
    type=COUNT,
    default=2000,
    show_default=True,
    help="Events between two snapshots; fewer if learning is slow.",
)
@click.option(
    "--demo",
    type=click.Choice(["docstrings", "digits"]),
    is_flag=False,
    flag_value="docstrings",
    help="Serve the docstrings of NumPy, SciPy and scikit-learn (docstrings, the default) or digits in eight "
    "colours (digits), from a subfolder of --data.",
)
@click.option(
    "--simulate",
    is_flag=True,
    help="With --demo: a simulated user clicks on what the authors of the docstrings recommend, or answers "
    "questions about digits by their shape.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Lines on stderr as text, or as JSON objects, one for every request too.",
)
@click.option(
    "--otel",
    is_flag=True,
    help="Send spans to OpenTelemetry (OTLP over HTTP; OTEL_EXPORTER_OTLP_ENDPOINT says where, and asks for "
    "them by itself). Needs simstream[otel].",
)
@quiet_option
def serve(
    items: Path | None,
    n_features: int | None,
    folder: Path,
    may_add: bool,
    follow: bool | str,
    collections: Path | None,
    workers: int,
    host: str,
    port: int,
    proxy: str | None,
    demo: str | None,
    simulate: bool,
    log_format: str,
    otel: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Serve ITEMS over HTTP: search, feedback, questions, and a page to answer them.

    Every change is written to a log before it is acknowledged; the model is computed from the log alone.
    ITEMS (.npy, .npz, .svm, .jsonl, .csv, .parquet) are added when the service starts for the first time. A
    folder that holds other items is refused unless --add is given.

    \b
    simstream serve items.npz
    simstream serve --demo --simulate
    simstream serve --workers 2                two more processes answer searches
    simstream serve --follow --port 8001       a process that only searches
    simstream serve --follow https://h --data c  the same on another machine
    simstream serve --collections shops.toml   several, each with its own folder
    simstream keys add page --scope read --scope write
    simstream serve --host 0.0.0.0
    """
    configure_logging(quiet)
    _check_installed()
    if simulate and not demo:
        raise click.UsageError("--simulate requires --demo")
    if follow and workers:
        raise click.UsageError("--workers are of the service that writes: not with --follow")
    if demo and items is not None:
        raise click.UsageError("--demo brings its own items: not with ITEMS")
    if collections is not None and workers:
        raise click.UsageError("--workers serve one collection: not with --collections")
    context = click.get_current_context()
    if collections is not None:
        refuse_given(context)
    shared = _shared_folder() if workers else None

    from ..serve.access import KeyRing, check_host
    from ..serve.app import check_port, run
    from ..serve.collections import check_hosts, run_collections
    from ..serve.demo import FOLDERS, load_demo
    from ..serve.log import damage_told
    from ..serve.logs import logged

    context.with_resource(logged(log_format, quiet=quiet))
    folder = folder if demo is None else folder / FOLDERS[demo]
    # What concerns all collections is allowed by keys beside their file.
    keys = KeyRing((folder if collections is None else collections.parent) / "keys.json")
    try:
        check_host(host, keys, proxy)
    except ValueError as error:
        name, _, text = str(error).partition(": ")
        raise click.BadParameter(text, param_hint=f"--{name}") from error
    check_port(host, port)
    told = {} if collections is None else read_collections(collections, serve)
    try:
        check_hosts(host, {name: given["folder"] for name, given in told.items()}, proxy)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    for name, given in told.items():
        with _speaking_of(name, given["folder"]):
            _check_service(**given)
    with ExitStack() as stack:
        stop_tracing = _start_tracing(otel)
        if stop_tracing is not None:
            stack.callback(stop_tracing)
        # Everything allocated until the service is ready stays alive: collecting garbage in it would only
        # cost time, now and later, when a request would have to wait for it.
        gc.disable()
        stack.callback(gc.enable)
        if collections is not None:
            services = {}
            for name, given in told.items():
                with _speaking_of(name, given["folder"]):
                    services[name] = _open_service(stack, **given)

            def on_all_ready(url: str) -> None:
                gc.freeze()
                gc.enable()
                logger.info("ready at %s (%s)", url, ", ".join(f"/c/{name}/" for name in services))

            run_collections(
                services, keys, host=host, port=port, on_ready=on_all_ready, proxy=proxy
            )
            logger.info("stopped")
            return
        stack.enter_context(damage_told(folder / "log.sqlite"))
        shown = None if demo is None else load_demo(demo)
        options |= {"items": items, "n_features": n_features, "folder": folder}
        options |= {"may_add": may_add, "follow": follow, "shown": shown}
        _check_service(**options)
        service = _open_service(stack, shared=shared, **options)

        def on_ready(url: str) -> None:
            gc.freeze()
            gc.enable()
            position, seconds = service.version.position, service.engine.restart_seconds
            logger.info("ready at %s (log position %d, %.2f s)", url, position, seconds)
            if shown is not None:
                stack.callback(_start_demo(service, shown, simulate=simulate))

        telemetry = {"log_format": log_format, "quiet": quiet, "otel": stop_tracing is not None}
        run(
            service,
            host=host,
            port=port,
            on_ready=on_ready,
            proxy=proxy,
            workers=workers,
            telemetry=telemetry,
        )
    logger.info("stopped at log position %d", service.version.position)


@contextmanager
def _speaking_of(name: str, folder: Path) -> Iterator[None]:
    """A block that works for a collection; every error names it."""
    from ..serve.log import damage_told
    from ..serve.logs import speaking_for

    try:
        with speaking_for(name), damage_told(folder / "log.sqlite"):
            yield
    except click.ClickException as error:
        kind = click.UsageError if isinstance(error, click.UsageError) else click.ClickException
        raise kind(f"collection {name}: {error.format_message()}") from error
    except (OSError, ValueError) as error:
        raise ValueError(f"collection {name}: {error}") from error


def _check_service(
    *,
    items: Path | None,
    n_features: int | None,
    folder: Path,
    address: str | None,
    may_add: bool,
    follow: bool | str,
    index: str,
    move_index: bool,
    candidates: int | None,
    recall_share: float | None,
    shown: Any = None,
    **options: Any,
) -> None:
    """Refuse what cannot be opened, before anything is made."""
    from ..serve.item_stores import is_store

    if items is None:
        refuse_options("requires ITEMS", {"--add": may_add, "--n-features": n_features is not None})
    elif not items.exists():
        raise FileNotFoundError(f"{items}: no such file")
    if follow and (items is not None or shown is not None):
        raise click.UsageError("--follow only reads: not with ITEMS or --demo")
    _check_index(index, {"ITEMS": items is not None, "--demo": shown is not None})
    if index == "exact":
        refuse_options(
            "requires --index",
            {"--candidates": candidates is not None, "--recall-share": recall_share is not None},
        )
    if not is_store(index):
        refuse_options("requires a database (--index)", {"--move-index": move_index})
    if isinstance(follow, str):  # how to learn stands in the log of that service
        refuse_options(
            "not with the address of a service to follow", {"--log": address is not None}
        )
        return
    kept = _kept(folder, address)
    if kept is not None or not follow:
        _chosen(kept, shown, **options)


def _open_service(
    stack: ExitStack,
    *,
    items: Path | None,
    n_features: int | None,
    folder: Path,
    address: str | None,
    may_add: bool,
    follow: bool | str,
    index: str,
    move_index: bool,
    candidates: int | None,
    recall_share: float | None,
    randomise: float,
    delta: float | None,
    near: int | None,
    random_share: float | None,
    rate: float,
    snapshot_every: int,
    shown: Any = None,
    shared: Path | None = None,
    **options: Any,
) -> Any:
    """Open the service of a folder, with items and the items of a demo if there are any."""
    from ..asking import Asking
    from ..data import read_items
    from ..serve.access import StorageError
    from ..serve.import_export import import_file
    from ..serve.service import Limits, Service, Settings

    address = follow if isinstance(follow, str) else address
    data = None if items is None else read_items(items, dtype="float32", n_features=n_features)
    kept = _kept(folder, address)
    learning, publishing = _chosen(kept, shown, **options)
    searching: dict[str, Any] = {"candidates": candidates, "recall_share": recall_share}
    given: dict[str, Any] = {"delta": delta, "near": near, "random_share": random_share}
    asking = Asking() if shown is None else shown.asking
    settings = Settings(
        folder,
        learning=learning,
        n_features=_length_of_sparse(data, kept, folder),
        asking=replace(asking, **{name: v for name, v in given.items() if v is not None}),
        limits=Limits(rate=rate),
        snapshot_every=snapshot_every,
        measure=None if shown is None else shown.measure,
        publishing=publishing,
        randomise=randomise,
        follow=bool(follow),
        opening=None if shown is None else shown.opening,
        shared=shared,
        log=address,
        index=index,
        move_index=move_index,
        **{name: v for name, v in searching.items() if v is not None},
    )
    service = Service(settings)
    stack.callback(service.close)
    if items is not None:
        try:
            came = import_file(service, items, data, may_add=may_add)
        except StorageError as error:
            raise click.ClickException(f"{folder}: {error}") from error
        if came.added or came.present:
            logger.info("%s added from %s", plural(came.added, "item"), items)
        else:
            logger.info("%s: its items were added before", items)
        if came.present:
            text = (
                "%d were already there and stay unchanged (%d have a different vector in the file)"
            )
            logger.info(text, came.present, came.different)
    if shown is not None:
        shown.add_to(service)
    return service


def _shared_folder() -> Path:
    """A folder of what the processes of a service share, until the end of the command."""
    if not hasattr(socket, "AF_UNIX"):
        raise click.UsageError("--workers: expected a system with socket files")
    folder = tempfile.mkdtemp(prefix="simstream-")

    def remove() -> None:
        del os.environ["PROMETHEUS_MULTIPROC_DIR"]
        shutil.rmtree(folder, ignore_errors=True)

    os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder  # before prometheus_client is imported
    click.get_current_context().call_on_close(remove)
    return Path(folder)


#: Package that an index needs, and the extra that brings it, by the beginning of its address.
_NEEDED_BY = {
    "usearch": ("usearch", "index"),
    **dict.fromkeys(("qdrant", "http", "https"), ("qdrant_client", "qdrant")),
    **dict.fromkeys(("postgresql", "postgres"), ("psycopg", "postgres")),
}


def _check_index(index: str, items_of: dict[str, bool]) -> None:
    from ..serve.item_stores import check_index, is_store

    try:
        check_index(index)
    except ValueError as error:
        raise click.BadParameter(
            str(error).removeprefix("index: "), param_hint="--index"
        ) from error
    if is_store(index):
        refuse_options("not with items in a database (--index)", items_of)
    package, extra = _NEEDED_BY.get(index.partition(":")[0], ("numpy", ""))
    if find_spec(package) is None:
        raise MissingExtraError(f"--index {index}", package, extra)


def _check_installed() -> None:
    needed = ("fastapi", "filelock", "prometheus_client", "uvicorn")
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        raise MissingExtraError("the service", " and ".join(missing), "serve")


def _start_tracing(is_asked: bool) -> Callable[[], None] | None:
    """Send spans if asked to; return a function to stop, None if there are none."""
    from ..serve.tracing import is_asked_for, start_tracing

    if not is_asked and not is_asked_for():
        return None
    try:
        return start_tracing()
    except MissingExtraError as error:
        if is_asked:
            raise
        logger.warning("no spans, although OTEL_* variables ask for them: %s", error)
        return None


def _start_demo(service: Any, demo: Any, *, simulate: bool) -> Callable[[], None]:
    """Say what there is to see, and start the simulated user if asked for; return a function to stop."""
    from ..serve.demo import start_user

    if service.version.tally.triplets:
        logger.info("continuing from %s (remove it to start over)", service.settings.folder)
    logger.info("%s", demo.about)
    logger.info("%s", demo.progress(service, demo.measure))
    if simulate:
        return start_user(demo, service, logger.info)
    logger.info("%s", demo.hint)
    return lambda: None


def _kept(folder: Path, address: str | None) -> dict[str, Any] | None:
    """The settings that the log of a folder was begun with, if there is one."""
    from ..serve.log import damage_told, open_log
    from ..serve.store import NoLogError

    try:
        log = open_log(folder, address)
    except NoLogError:
        return None
    with damage_told(folder / "log.sqlite"), closing(log):
        kept: dict[str, Any] | None = log.setting("service")
    return kept


def _published(
    kept: Any, promote: str | None, half_life: float | None, propensity: float | str | None
) -> Any:
    """What was published as the options change it."""
    options = {"promote": promote, "half_life": half_life, "propensity": propensity}
    given = {name: value for name, value in options.items() if value is not None}
    return replace(kept, **given)


def _chosen(
    kept: dict[str, Any] | None,
    shown: Any,
    *,
    algorithm: str | None,
    params: tuple[tuple[str, Any], ...],
    block: int | None,
    promote: str | None,
    half_life: float | None,
    propensity: float | str | None,
    **_: Any,
) -> tuple[Any, Any]:
    """How to learn and what to publish: as the log was begun, except where options say otherwise."""
    from ..serve.evidence import Publishing
    from ..serve.state import Learning

    learning, publishing = Learning(), None
    if kept is not None:
        learning, publishing = Learning(**kept["learning"]), Publishing.stored_in(kept)
    elif shown is not None:
        learning, publishing = shown.learning, shown.publishing
    learning = _changed(learning, algorithm, dict(params), block)
    if learning.algorithm not in ALGORITHMS:
        raise _unknown_algorithm(algorithm)
    check_names(learning.algorithm, dict(params))
    try:
        learning.new_learner()
    except (TypeError, ValueError) as error:
        blamed = "--param" if params else "--algorithm"
        raise click.BadParameter(str(error), param_hint=blamed) from error
    publishing = publishing or Publishing.checked(None, learning.params)
    publishing = _published(publishing, promote, half_life, propensity)
    try:
        return learning, Publishing.checked(publishing, learning.params)
    except ValueError as error:
        raise click.UsageError(f"--{error}") from error


def _length_of_sparse(data: Any, kept: dict[str, Any] | None, folder: Path) -> int | None:
    """The number of features of sparse items, which are as the log was begun; None if they are dense."""
    import scipy.sparse as sp

    is_sparse = data is not None and sp.issparse(data.items)
    n_features: int | None = data.items.shape[1] if is_sparse else None
    if kept is None:
        return n_features
    known: int | None = kept["n_features"]
    if n_features not in (None, known):
        expected = "dense vectors" if known is None else f"sparse vectors of {known} features"
        raise ValueError(
            f"ITEMS: expected {expected}, as in {folder}, got sparse vectors of {n_features}; "
            "choose another folder (--data)"
        )
    return known


def _unknown_algorithm(name: str | None) -> click.BadParameter:
    from ..serve.state import can_serve

    return click.BadParameter(
        f"expected one of {names_of(can_serve)}, got {name}", param_hint="--algorithm"
    )


def _changed(kept: Any, algorithm: str | None, params: dict[str, Any], block: int | None) -> Any:
    """The kept way of learning as the options change it; another algorithm has its own parameters."""
    return replace(
        kept,
        algorithm=(algorithm or kept.algorithm).lower(),
        params=params if params or algorithm else kept.params,
        block=kept.block if block is None else block,
    )


# -- replaying the log -----------------------------------------------------------------------------


@click.command(short_help="Rebuild a service's model from its log and compare.")
@service_folder_option
@click.option("--algorithm", "-a", help="Use another learner (default: that of the log).")
@params_option
@click.option("--block", type=COUNT, help="Learn in blocks of this many events.")
@publishing_options
@click.option("--until", type=NATURAL, help="Log position to stop at (default: the end).")
@click.option(
    "--output",
    "-o",
    type=PathType(dir_okay=False),
    help="Write the rebuilt model to this file.",
)
@click.option(
    "--adopt",
    is_flag=True,
    help="Make the service learn this way from now on (it must not be running).",
)
@json_option
def replay(
    folder: Path,
    algorithm: str | None,
    params: tuple[tuple[str, Any], ...],
    block: int | None,
    promote: str | None,
    half_life: float | None,
    propensity: float | str | None,
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
    simstream replay --promote safe --adopt       serve what can be trusted
    """
    from ..serve.evidence import Publishing
    from ..serve.log import damage_told, lock_folder, open_log
    from ..serve.snapshots import adopt_learning, compare
    from ..serve.state import Learning
    from ..serve.store import NoLogError

    try:
        open_log(folder).close()
    except NoLogError:
        raise click.UsageError(f"--data: expected a service's folder, got {folder}") from None

    is_same = True

    def chosen(kept: Learning) -> Learning:
        nonlocal is_same
        wanted = _changed(kept, algorithm, dict(params), block)
        is_same &= wanted == kept
        return wanted

    def published(kept: Publishing) -> Publishing:
        nonlocal is_same
        wanted: Publishing = _published(kept, promote, half_life, propensity)
        is_same &= wanted == kept
        return wanted

    if adopt:
        with lock_folder(folder):  # raises if a service runs, before all the work
            pass
    try:
        with damage_told(folder / "log.sqlite"):
            report, learner = compare(folder, chosen, until, published)
    except KeyError as error:
        raise _unknown_algorithm(algorithm) from error
    # The kept model is compared with the log learnt in the kept way, whatever else was rebuilt.
    report["kept_model_matches_log"] = report["identical"]
    if not is_same:
        report["identical"] = None
    if output is not None:
        if learner is None:
            raise click.UsageError("--output: the log holds nothing to learn from")
        learner.save(output, extra={"position": report["position"]})
    if adopt:
        adopt_learning(folder, chosen, published)
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
