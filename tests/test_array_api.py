"""Tensors are items while scikit-learn's dispatch of the array API is switched on, too."""

import subprocess
import sys

import pytest

CODE = """
import numpy as np, sklearn, torch
from simstream import LDA, FromLabels, OASIS

items, labels = np.random.default_rng(0).normal(size=(60, 4)), np.arange(60) % 3
tensors = torch.tensor(items), torch.tensor(labels)
plain = FromLabels(OASIS(), 100, random_state=0).fit(items, labels), LDA().fit(items, labels)
with sklearn.config_context(array_api_dispatch=True):
    models = FromLabels(OASIS(), 100, random_state=0).fit(*tensors), LDA().fit(*tensors)
    assert (models[0].predict(tensors[0]) == plain[0].predict(items)).all()
    assert np.allclose(models[1].transform(tensors[0]), plain[1].transform(items))
"""


def test_dispatch():
    pytest.importorskip("torch")
    command = [sys.executable, "-c", "import os; os.environ['SCIPY_ARRAY_API'] = '1'\n" + CODE]
    told = subprocess.run(command, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
