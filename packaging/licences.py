#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""licences.py SBOM DIRECTORY BUILT: the licence texts of a program's parts, as their packages bring them, one file each;
those of what was built from sources lie in BUILT."""
import json
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def text_of(part, built):
    purl = part.get("purl", "")
    if "arch=source" in purl:
        return built / f"{part['name']}.copyright"
    if purl:
        return pathlib.Path("/usr/share/doc") / part["name"] / "copyright"
    folder = ROOT / "third_party" / part["name"].split("-")[0]
    return next(iter(folder.glob("LICENSE*")))


def main():
    sbom, directory, built = map(pathlib.Path, sys.argv[1:4])
    for part in json.loads(sbom.read_text())["components"]:
        source = text_of(part, built)
        if not source.exists():
            sys.exit(f"licences: {part['name']} has no licence text at {source}.")
        shutil.copyfile(source, directory / f"{part['name']}.txt")
    # The runtime of the compiler is linked in too.
    package = re.search(r"libstdc\+\+-\d+-dev", subprocess.run(["dpkg-query", "-W", "libstdc++-*-dev"], capture_output=True, text=True).stdout)
    shutil.copyfile(pathlib.Path("/usr/share/doc") / (package.group(0) if package else "libstdc++6") / "copyright", directory / "gcc-runtime.txt")


if __name__ == "__main__":
    main()
