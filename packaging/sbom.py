#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""sbom.py BUILD_DIRECTORY PROGRAM -o FILE: what a built program is made of, as a CycloneDX 1.5 bill of materials.

Nothing of it is a list that somebody keeps: packages are those whose headers the compiler read for this program and whose libraries the
linker was given; their versions are the installed ones. Licences are THIRD_PARTY.md's, and a package that it does not name is an error."""
import argparse
import datetime
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import uuid

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Parts of the compiler and of the C library: what of them is in the program stands in THIRD_PARTY.md's last rows.
TOOLCHAIN = re.compile(r"(libc6-dev|libc6|linux-libc-dev|libgcc-\d+-dev|gcc-.*|g\+\+-.*|libcrypt-dev|.*-arm64-cross)$")
SPDX = {"BSL-1.0", "Apache-2.0", "MIT", "BSD-3-Clause", "ICU", "GPL-3.0", "LGPL-3.0"}


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def fail(sentence):
    sys.exit(f"sbom: {sentence}")


def third_party():
    """{Debian package or carried folder: (library, licence)} of THIRD_PARTY.md."""
    found = {}
    for line in (ROOT / "THIRD_PARTY.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4:
            for name in re.findall(r"`([\w./+-]+)`", cells[3]):
                found[name] = (cells[0], cells[1])
    return found


def files_of(build, target):
    """Headers and libraries outside the tree that a target was made of."""
    objects = set()
    link = [line for line in run("ninja", "-C", str(build), "-t", "commands", "-s", target).splitlines() if line][-1]
    libraries = {word for word in link.split() if re.search(r"\.(a|so)(\.[\d.]+)?$", word)}
    inputs = run("ninja", "-C", str(build), "-t", "inputs", target).splitlines()
    objects = {one for one in inputs if one.endswith(".o")}
    headers = set()
    taken = False
    for line in run("ninja", "-C", str(build), "-t", "deps").splitlines():
        if not line.startswith(" "):
            taken = line.split(":")[0] in objects
        elif taken and line.strip().startswith("/"):
            headers.add(line.strip())
    return headers | {one for one in libraries if one.startswith("/")}


def packages_of(files):
    """{package: version} of the files that packages own; the rest."""
    owners, rest = {}, set()
    outside = sorted({os.path.normpath(one) for one in files if not one.startswith(str(ROOT))})
    for begin in range(0, len(outside), 500):
        part = outside[begin:begin + 500]
        answer = subprocess.run(["dpkg-query", "-S", *part], capture_output=True, text=True)
        known = {}
        for line in answer.stdout.splitlines():
            names, path = line.rsplit(": ", 1)
            known[path] = names.split(",")[0].strip()
        for path in part:
            name = known.get(path)
            rest.add(path) if name is None else owners.setdefault(name.split(":")[0], name)
    versions = {}
    for package, full in owners.items():
        source, version = run("dpkg-query", "-W", "-f", "${source:Package} ${Version}", full).split(" ")
        versions[package] = (source, version)
    return versions, rest


def component(kind, name, version, licence, purl=None):
    made = {"type": kind, "bom-ref": purl or f"{name}@{version}", "name": name, "version": version}
    if licence:
        # An identifier where it is one alone; else words.
        made["licenses"] = [{"license": {"id": licence} if licence in SPDX and licence not in ("GPL-3.0", "LGPL-3.0") else {"name": licence}}]
    if purl:
        made["purl"] = purl
    return made


def bill(build, target, program):
    named = third_party()
    packages, rest = packages_of(files_of(build, target))
    parts = []
    if unowned := sorted(one for one in rest if not one.startswith(str(build.resolve()))):
        fail(f"the program is made with {unowned[0]}, which no package has; a bill cannot say what that is.")
    for package, (source, version) in sorted(packages.items()):
        if TOOLCHAIN.match(package):
            continue
        if package not in named:
            fail(f"the program is made with {package} {version}, which THIRD_PARTY.md does not name; add its row there.")
        library, licence = named[package]
        parts.append(component("library", package, version, licence, f"pkg:deb/debian/{package}@{version}"))
    # Built from Debian's sources by packaging/portable/dependencies.sh.
    built = build / "portable" / "libraries"
    if built.exists():
        for line in (built / "versions").read_text().splitlines():
            source, version = line.split(" ")
            row = named.get(source)
            if row is None:
                fail(f"the program is made with {source} {version}, which THIRD_PARTY.md does not name; add its row there.")
            parts.append(component("library", source, version, row[1], f"pkg:deb/debian/{source}@{version}?arch=source"))
    for folder in sorted((ROOT / "third_party").iterdir()):
        if folder.is_dir() and folder.name != "googletest":  # of the tests
            library, licence = named[f"third_party/{folder.name}"]
            parts.append(component("library", *library.rsplit(" ", 1), licence))
    text = run(str(program), "--version")
    version, commit = re.match(r"(?:loralei )?(\S+) \((\w+)", text).groups()
    sha256 = hashlib.sha256(program.read_bytes()).hexdigest()
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or run("git", "-C", str(ROOT), "log", "-1", "--format=%ct").strip())
    main = component("application", "loralei", version, "Apache-2.0")
    main["hashes"] = [{"alg": "SHA-256", "content": sha256}]
    main["properties"] = [{"name": "loralei:commit", "value": commit or "unknown"}]
    return {
        "bomFormat": "CycloneDX", "specVersion": "1.5", "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, sha256)}", "version": 1,
        "metadata": {"timestamp": datetime.datetime.fromtimestamp(epoch, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"), "component": main},
        "components": parts,
        "dependencies": [{"ref": main["bom-ref"], "dependsOn": [part["bom-ref"] for part in parts]}],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("--target", default="loralei", help="its name in the build")
    parser.add_argument("-o", "--output", type=pathlib.Path, required=True)
    options = parser.parse_args()
    made = bill(options.build, options.target, options.program.resolve())
    options.output.write_text(json.dumps(made, indent=1) + "\n")
    print(f"{options.output}: {len(made['components'])} parts")


if __name__ == "__main__":
    main()
