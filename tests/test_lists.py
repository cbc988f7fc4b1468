"""Lists of learners and of formats in README, docs and --help are those of the code."""

import inspect
import re
from pathlib import Path

import pytest

import simstream
from simstream import FromLabels
from simstream.catalogue import ALGORITHMS
from simstream.cli.serve import serve
from simstream.cli.train import train
from simstream.data import item_formats, records
from simstream.data.feedback import _FORMATS as JUDGEMENTS

ROOT = Path(__file__).resolve().parent.parent
NAMES = {algorithm.name for algorithm in ALGORITHMS}
BASELINES = {"Euclidean", "Dot"}


def learners(condition):
    found = {name for name in NAMES - BASELINES if condition(getattr(simstream, name))}
    assert found
    return found


def has_parameter(name):
    return learners(lambda kind: name in inspect.signature(kind).parameters)


def can_be_checked(**parameters):
    """Learners that accept these parameters."""

    def accepts(kind):
        try:
            kind(**parameters).check_parameters()
        except (TypeError, ValueError):
            return False
        return True

    return learners(accepts)


BATCH = {algorithm.name for algorithm in ALGORITHMS if algorithm.is_batch}
TRANSFORMERS = BATCH & learners(lambda kind: hasattr(kind, "transform"))
WITHOUT_TASKS = TRANSFORMERS - {"MultiTaskLMNN"}
WITH_SPACE = learners(lambda kind: hasattr(FromLabels(kind()), "transform")) - BATCH
ON_GPU = has_parameter("device")
AVERAGED = has_parameter("average_from")
UNWEIGHTED = learners(
    lambda kind: (
        "sample_weight" in inspect.signature(kind.fit).parameters
        and not getattr(kind(), "_has_weights", lambda: True)()
    )
)
FROM_LDA = can_be_checked(init="lda") - BATCH


def names_in(text):
    return set(re.findall(r"\w+", text)) & NAMES


def extensions_in(text):
    """Extensions, one for each format: LIBSVM has three."""
    found = {word.lower() for word in re.findall(r"[.\w]+", text)}
    known = {*item_formats.FORMATS, *records.FORMATS, *JUDGEMENTS}
    found = {word.removeprefix(".") for word in found} & known
    return {"svm" if name in ("libsvm", "svmlight") else name for name in found}


def formats_of(known):
    return extensions_in(" ".join(known))


def text_of(name):
    if name.endswith(".md"):
        text = (ROOT / name).read_text()
    else:
        text = {"serve": serve, "train": train, "main": simstream.cli.main}[name].help
    return " ".join(text.split())


@pytest.mark.parametrize(
    ("name", "sentence", "expected"),
    [
        ("README.md", r"usual batch metric learners \((.*?)\)", WITHOUT_TASKS),
        ("docs/tour.md", r"# ([\w, ]*) work the same way", WITHOUT_TASKS - {"LMNN"}),
        ("docs/tour.md", r"\* (`OASIS\(device=\"cuda\"\)`.*?):", ON_GPU),
        ("docs/tour.md", r"([\w, ]*) can average their iterates", AVERAGED),
        ("docs/coming-from.md", r"what is learnt has a space \((.*?)\)", WITH_SPACE),
        ("docs/coming-from.md", r"The batch learners \((.*?)\) are transformers", WITHOUT_TASKS),
        ("docs/coming-from.md", r"refuse weights: `variant=\"PA\"`, (.*?)\.", UNWEIGHTED),
        ("docs/batch-learners.md", r"with `init=\"lda\"`, (.*?) work", FROM_LDA),
        ("docs/benchmarks-gpu.md", r"(`OASIS\(device=\"cuda\"\)`.*?) learn on a GPU", ON_GPU),
        ("docs/tutorials/scale.md", r"([\w, ]*) know GPUs", ON_GPU),
        ("docs/map.md", r"batch learners: (.*?), each with its solver", BATCH),
        ("train", r"Batch learners \((.*?)\) have no checkpoints", BATCH),
    ],
)
def test_learners(name, sentence, expected):
    found = re.findall(sentence, text_of(name))
    assert [names_in(one) for one in found] == [expected]


@pytest.mark.parametrize(
    ("name", "sentence", "expected"),
    [
        ("docs/tour.md", r"Items come from (.*?) files", item_formats.FORMATS),
        ("docs/service.md", r"Items come from (.*?) files", item_formats.FORMATS),
        ("docs/formats.md", r"\[items\]\(#items\): [^|]*\|(.*?)\|", item_formats.FORMATS),
        ("docs/formats.md", r"\[pairs\]\(#pairs\) \|(.*?)\|", records.FORMATS),
        ("docs/formats.md", r"\[judgements\]\(#judgements\): [^|]*\|(.*?)\|", JUDGEMENTS),
        ("docs/adapt.md", r"relevant\) as (.*?), BEIR", JUDGEMENTS),
        ("serve", r"ITEMS \((.*?)\) are added", item_formats.FORMATS),
        ("main", r"Items: (.*?\.parquet)", item_formats.FORMATS),
        ("main", r"triplets and pairs: (.*?), or standard input", records.FORMATS),
    ],
)
def test_formats(name, sentence, expected):
    found = re.findall(sentence, text_of(name))
    assert [extensions_in(one) for one in found] == [formats_of(expected)]
