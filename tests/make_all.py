# SPDX-License-Identifier: Apache-2.0
"""Regenerates every reference value: tests/golden and tests/vectors. Needs golden/requirements.txt."""
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main():
    for script in ("golden/make_golden.py", "vectors/make_vectors.py"):
        subprocess.run([sys.executable, str(HERE / script)], check=True, cwd=(HERE / script).parent)


if __name__ == "__main__":
    main()
