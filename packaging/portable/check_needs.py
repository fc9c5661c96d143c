#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_needs.py [--newest 2.28] PROGRAM: what a program needs of the machine that it runs on: libraries, and the newest glibc that it
asks for. Ends with 1 where these are more than glibc's own libraries, or a newer one."""
import argparse
import re
import subprocess
import sys

OF_GLIBC = re.compile(r"(lib(c|m|pthread|dl|rt|resolv)\.so\.\d|ld-linux-(x86-64|aarch64)\.so\.\d)$")


def needs(program):
    """(libraries, {(library, version): [names]})"""
    listed = subprocess.run(["readelf", "--dynamic", "--dyn-syms", "-W", program], check=True, capture_output=True, text=True).stdout
    libraries = re.findall(r"\(NEEDED\).*\[(.*)\]", listed)
    versions = {}
    for name, version in re.findall(r" UND (\w+)@(\w[\w.]*)", listed):
        versions.setdefault(version, []).append(name)
    return libraries, versions


def newer(version, newest):
    """Also of libraries beside glibc, whose versions are no numbers of its own."""
    match = re.fullmatch(r"GLIBC_([\d.]+)", version)
    return match is None or tuple(map(int, match.group(1).split("."))) > newest


def main():
    parser = argparse.ArgumentParser(description=__doc__.split(":")[0])
    parser.add_argument("--newest", default="2.28")
    parser.add_argument("program")
    options = parser.parse_args()
    libraries, versions = needs(options.program)
    newest = tuple(map(int, options.newest.split(".")))
    wrong = [f"needs the library {one}" for one in libraries if not OF_GLIBC.match(one)]
    wrong += [f"needs {version} for {', '.join(names)}" for version, names in sorted(versions.items()) if newer(version, newest)]
    for one in wrong:
        print(f"{options.program} {one}.")
    if not wrong:
        print(f"{options.program}: glibc {options.newest} is enough ({', '.join(libraries)})")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
