"""Demos of the service: what they serve, how they learn, and who may simulate a user."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from ..asking import Asking
from .access import ServiceError
from .evidence import Publishing
from .service import Service
from .state import Learning

#: Subfolders of the service's folder.
FOLDERS = {"docstrings": "demo-docstrings", "digits": "demo"}


class Demo(NamedTuple):
    """What one demo is made of."""

    about: str
    #: What a person can do on the page.
    hint: str
    learning: Learning
    asking: Asking
    publishing: Publishing
    #: Takes the served `Model`, returns JSON values about the quality of search.
    measure: Callable[[Any], dict[str, Any]]
    #: Adds the items, unless they are there already.
    add_to: Callable[[Service], int]
    #: One line about the progress of learning.
    progress: Callable[[Service, Any], str]
    #: Makes a simulated user: a function that does one thing.
    make_user: Callable[[], Callable[[Service], None]]
    #: The first question: an anchor and two candidates.
    opening: tuple[str, str, str]


def load_demo(name: str) -> Demo:
    """The demo "docstrings" or "digits".

    Examples
    --------
    >>> load_demo("digits").about
    'Digits in eight colours...'
    """
    if name == "docstrings":
        from . import demo_docstrings as docstrings

        return Demo(
            about=docstrings.ABOUT,
            hint="Search on Explore and click on what belongs together; or start with --simulate",
            learning=docstrings.LEARNING,
            asking=docstrings.ASKING,
            publishing=Publishing(),
            measure=docstrings.LinkMeasure(),
            add_to=docstrings.add_docstrings,
            progress=docstrings.progress,
            make_user=docstrings.Reader,
            opening=docstrings.OPENING,
        )
    from . import demo_digits as digits

    def make_user() -> Callable[[Service], None]:
        annotator = digits.Annotator()
        return lambda service: digits.answer_one(service, annotator)

    return Demo(
        about=digits.ABOUT,
        hint="Answer some questions on the page, judging by shape; or start with --simulate",
        learning=digits.LEARNING,
        asking=digits.ASKING,
        publishing=Publishing("always"),  # every answer is seen at once
        measure=digits.Measure(),
        add_to=digits.add_digits,
        progress=digits.progress,
        make_user=make_user,
        opening=digits.opening(),
    )


def start_user(
    demo: Demo, service: Service, tell: Callable[[str], None], per_second: float = 10.0
) -> Callable[[], None]:
    """Simulate a user in the background, and report progress now and then; call the result to stop."""
    act, stop = demo.make_user(), threading.Event()

    def work() -> None:
        count = 0
        while not stop.wait(1 / per_second):
            try:
                act(service)
            except ServiceError as error:
                if service.writer.is_closed:
                    return
                tell(f"simulated user: {error}")
                stop.wait(1)
                continue
            count += 1
            if count in (10, 30) or count % 100 == 0:
                tell(demo.progress(service, demo.measure))

    threading.Thread(target=work, name="simulated-user", daemon=True).start()
    return stop.set
