"""Long checks, run by `make check-full`: kill, fuzz, soak."""

import os
import resource
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import scipy.sparse as sp
from safetensors import safe_open

import simstream
import simstream_repro.reference as ref
from cases import items, triplets
from simstream import OASIS, SORS, AdaSORS, TripletSampler, persistence
from simstream._kernels.steps import SHIFT
from test_contract import same_model

pytestmark = pytest.mark.slow

PROGRAM = [sys.executable, "-c", "from simstream.cli import main; main()"]


def test_a_checkpoint_killed_at_any_moment_is_whole_and_can_be_resumed(tmp_path):
    rng = np.random.default_rng(0)
    X = sp.random(300, 400, density=0.1, format="csr", random_state=0)
    y = rng.integers(0, 3, 300)
    np.savez(
        tmp_path / "items.npz",
        data=X.data,
        indices=X.indices,
        indptr=X.indptr,
        shape=X.shape,
        labels=y,
    )
    n = 120_000
    options = [str(tmp_path / "items.npz"), "-a", "sors", "-p", "lam=1e-5", "-n", str(n), "--quiet"]
    whole = tmp_path / "whole.safetensors"
    subprocess.run([*PROGRAM, "train", *options, "-o", str(whole)], check=True)
    expected = simstream.load(whole)

    model = tmp_path / "model.safetensors"
    kills = 0
    for attempt in range(60):
        resume = ["--resume", str(model)] if model.exists() else []
        command = [
            *PROGRAM,
            "train",
            *options,
            "--checkpoint-every",
            "3000",
            "-o",
            str(model),
            *resume,
        ]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            process.wait(timeout=2.0 + 0.13 * attempt)
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            kills += 1
        if model.exists():
            simstream.load(model)  # never half a file
        if process.returncode == 0:
            break
    assert process.returncode == 0
    assert kills >= 2
    same_model(simstream.load(model), expected)
    left_over = [p.name for p in tmp_path.iterdir() if p.name.startswith(".tmp-")]
    assert len(left_over) <= kills  # a killed write may leave its temporary file, nothing else


def test_damaged_model_files_are_refused_or_harmless(tmp_path, monkeypatch):
    path = tmp_path / "model.safetensors"
    AdaSORS(preprocessor=sp.csr_matrix(items())).fit(triplets()).save(path)
    content = path.read_bytes()
    with safe_open(path, framework="np") as file:
        known = file.metadata()["simstream_crc32"]
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(3000):
        damaged = bytearray(content)
        for _ in range(rng.integers(1, 5)):
            # mostly in the header, where a change has a meaning
            where = rng.integers(0, 2500 if rng.random() < 0.8 else len(content))
            damaged[where % len(content)] = rng.integers(0, 256)
        path.write_bytes(bytes(damaged))
        with monkeypatch.context() as patch:
            if rng.random() < 0.5:  # as if the checksum had been made to fit
                patch.setattr(persistence, "_checksum", lambda *_: known)
            try:
                simstream.load(path)
            except simstream.ModelFileError:
                refused += 1
    assert refused > 2000


def test_a_long_float32_stream_stays_accurate_and_bounded():
    """Millions of rounds: rebased several times, memory bounded, close to the float64 run."""
    rng = np.random.default_rng(0)
    X = sp.random(2000, 3000, density=0.004, format="csr", random_state=0, dtype=np.float32)
    X.data = rng.normal(size=X.nnz).astype(np.float32)
    sampler = TripletSampler(np.arange(2000) % 7, 0)
    low = SORS(lam=1e-3, eta=0.05, preprocessor=X, head_bytes=4 * 500 * 500)
    high = SORS(lam=1e-3, eta=0.05, preprocessor=X.astype(np.float64), head_bytes=8 * 500 * 500)
    sizes = []
    for _ in range(25):
        T = sampler.draw(200_000)
        low.partial_fit(T)
        high.partial_fit(T)
        sizes.append(len(low._engine.store.arrays.key))
    assert low.n_rounds_ == 5_000_000
    assert low._engine.clock[SHIFT] < 0.05 * 1e-3 * 5_000_000  # rebased on the way
    assert sizes[-1] <= 2 * sizes[4]
    assert low.sparsity_ == pytest.approx(high.sparsity_, abs=0.02)
    assert low.average_loss_ == pytest.approx(high.average_loss_, rel=0.01)


def test_many_calls_do_not_leak():
    X = items()
    model = OASIS()
    for a, p, n in triplets(n=300):
        model.learn_one(X[a], X[p], X[n])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.monotonic()
    for _ in range(200):
        for a, p, n in triplets(n=300):
            model.learn_one(X[a], X[p], X[n])
        if time.monotonic() - started > 60:
            break
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000  # kilobytes


def test_twenty_thousand_rounds_against_the_eager_reference():
    X = items(d=12, density=0.4)
    T = np.tile(triplets(n=1000), (20, 1))
    M = np.eye(12)
    stream = [(X[a], X[p] - X[n]) for a, p, n in T]
    expected = ref.sors(M, stream, 1e-4, 0.05)[-1]
    got = SORS(lam=1e-4, eta=0.05, preprocessor=sp.csr_matrix(X)).fit(T).get_bilinear_matrix()
    np.testing.assert_allclose(got.toarray(), expected, rtol=0, atol=1e-9)
