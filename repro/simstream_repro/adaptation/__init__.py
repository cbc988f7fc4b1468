"""``simstream repro adaptation``: which cells are run (`plan`), and the page written from them (`page`)."""
